"""The Task of a federation: the input and output of all its models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfedlora_flwr.training import kinds
from pfedlora_flwr.training.kinds import Kind, Shape


@dataclass(frozen=True)
class Task:
    """classes: C, the number of logits. shape: of one input as a model takes it, without the batch.
    kind: of the inputs; without it, the kind that has so many axes.

    (channels, height, width) of images, (channels, time) of series, (features,) of vectors.
    """

    classes: int
    shape: Shape = (3, 32, 32)
    kind: Kind = None  # type: ignore[assignment]  # only until __post_init__

    def __post_init__(self) -> None:
        if self.kind is None:
            object.__setattr__(self, "kind", kinds.of_shape(self.shape))

    def __str__(self) -> str:
        """Kind and shape of its inputs, as a line has them: `images of 3x32x32`."""
        return self.kind.of(self.shape)

    def blank(self, n: int) -> Tensor:
        """`n` inputs of zeros, [n, *shape]."""
        return self.kind.blank(self.shape, n)

    def random(self, n: int, generator: torch.Generator) -> Tensor:
        """`n` inputs as training has them, drawn at random, [n, *shape]."""
        return self.kind.random(self.shape, n, generator)
