"""`pfedlora predict`: a client's personalised model asked about images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pfedlora_flwr.data.images import read_image
from pfedlora_flwr.runs.trained import Trained

_SHOWN = 3


@dataclass(frozen=True)
class Prediction:
    """What the model says of one image: every class with its probability, the most probable first."""

    image: Path
    classes: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        named = ", ".join(f"{name} {probability:.4f}" for name, probability in self.classes[:_SHOWN])
        return f"{self.image}: {named}" + (", …" if len(self.classes) > _SHOWN else "")


def predict(trained: Trained, images: Sequence[Path]) -> list[Prediction]:
    """The predictions for PNG or JPEG files of any size. Raises UserError for a file that is none."""
    pixels = np.stack([read_image(path) for path in images])
    predictions = []
    for path, probabilities in zip(images, trained.logits(pixels).softmax(1).tolist(), strict=True):
        ranked = sorted(zip(trained.class_names, probabilities, strict=True), key=lambda pair: -pair[1])
        predictions.append(Prediction(path, tuple(ranked)))
    return predictions
