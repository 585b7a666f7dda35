"""The Task of a federation: what every one of its models takes and gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

KINDS = {3: "images", 2: "series", 1: "vectors"}
"""The dimensions of an input → what it is."""


@dataclass(frozen=True)
class Task:
    """classes: C, the number of logits. shape: of one input as a model takes it, without the batch.

    (channels, height, width) of images, (channels, time) of series, (features,) of vectors.
    """

    classes: int
    shape: tuple[int, ...] = (3, 32, 32)

    @property
    def kind(self) -> str:
        """What an input is: images, series or vectors."""
        return KINDS[len(self.shape)]

    def blank(self, n: int) -> Tensor:
        """`n` inputs of zeros, [n, *shape]."""
        return torch.zeros(n, *self.shape)
