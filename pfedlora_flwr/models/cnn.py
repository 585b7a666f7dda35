"""The paper's five CNNs (appendix, table of model structures), each cut into an encoder and a head.

No padding, no normalisation layers, no dropout. Max-pooling comes before ReLU: the two commute, and
so it is cheaper."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models.model import Family
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.kinds import IMAGES

WIDTH_FC2 = 500
SHAPES = {
    "cnn1": (32, 2000),
    "cnn2": (16, 2000),
    "cnn3": (32, 1000),
    "cnn4": (32, 800),
    "cnn5": (32, 500),
}
"""Filters of the second convolution and width of FC1."""
KERNEL, SMALLEST = 5, 16
"""Of both convolutions; and the smallest image of which they leave anything."""


class CNN(Family):
    """CNN-1 … CNN-5. R is 500 wide for all five, or 2000 … 500 before the last two layers.

    The paper's images are 32 × 32, of which 5 × 5 are left before FC1; of larger ones more are, and
    FC1 grows with them."""

    kind = IMAGES

    def __init__(self, name: str, task: Task, width_fc2: int = WIDTH_FC2) -> None:
        super().__init__()
        filters, width = SHAPES[name]
        channels, *sides = task.shape
        rows, columns = (left(side) for side in sides)
        if min(rows, columns) < 1:
            raise UserError(
                f"model {name!r} takes images of at least {SMALLEST} × {SMALLEST}, and they are"
                f" {sides[0]} × {sides[1]}"
            )
        self.conv1 = nn.Conv2d(channels, 16, KERNEL)
        self.conv2 = nn.Conv2d(16, filters, KERNEL)
        self.connect(rows * columns * filters, (width, width_fc2), task.classes)

    def trunk(self, inputs: Tensor) -> Tensor:
        # of 32 × 32: [B, 16, 14, 14]
        x = torch.relu(nn.functional.max_pool2d(self.conv1(inputs), 2))
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))  # [B, c2, 5, 5]
        return torch.relu(self.fc1(x.flatten(1)))


def left(side: int) -> int:
    """Of a side of an image what is left before FC1: after two convolutions without padding, each
    pooled by 2."""
    return ((side - KERNEL + 1) // 2 - KERNEL + 1) // 2
