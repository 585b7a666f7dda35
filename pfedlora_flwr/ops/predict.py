"""`pfedlora predict`: the predictions of clients' personalised models for images or rows of
files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.ops.read_inputs import Asked, Place, far_outside, read, reading_of
from pfedlora_flwr.runs.trained import Trained

Divisor = Callable[[Trained], float]


@dataclass(frozen=True)
class Prediction:
    """What a client's model says of one input: every class with its probability, the most probable
    first."""

    client: int
    place: Place
    classes: tuple[tuple[str, float], ...]


def predict_files(
    models: Iterable[Trained],
    paths: Sequence[Path],
    *,
    options: Mapping[str, object],
    divisor: Divisor | None = None,
) -> tuple[Asked, list[Prediction]]:
    """What was read of the files, and what each model says of it. options: as `reading_of` has
    them. divisor: of a model's outputs. Raises UserError."""
    rest = iter(models)
    first = next(rest)
    asked = read(paths, first.task, first.feature_names, reading_of(first, options, paths))
    if not asked.places:
        return asked, []
    asked.notes.extend(far_outside(asked, first.about["mean"], first.about["std"]))
    return asked, predict(chain([first], rest), asked, divisor)


def predict(
    models: Iterable[Trained], asked: Asked, divisor: Divisor | None = None
) -> list[Prediction]:
    """What each model says of each input. Raises UserError for a model whose outputs are no
    numbers, or that takes other inputs."""
    predictions: list[Prediction] = []
    for trained in models:
        if (trained.task.shape, trained.feature_names) != (asked.shape, asked.feature_names):
            raise UserError(
                f"the model of client {trained.client} takes other inputs than those before: use"
                " it by itself"
            )
        by = divisor(trained) if divisor else 1.0
        probabilities = (trained.logits(asked.inputs) / by).softmax(1)
        if not bool(probabilities.isfinite().all()):
            raise UserError(
                f"the model of client {trained.client} gives values that are not finite: its"
                " training diverged"
            )
        for place, row in zip(asked.places, probabilities.tolist(), strict=True):
            ranked = sorted(zip(trained.class_names, row, strict=True), key=lambda pair: -pair[1])
            predictions.append(Prediction(trained.client, place, tuple(ranked)))
    return predictions
