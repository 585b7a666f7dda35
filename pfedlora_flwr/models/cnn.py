"""The paper's five CNNs (appendix, table of model structures), each cut into an encoder and a head.

No padding, no normalisation layers, no dropout. Max-pooling comes before ReLU: the two commute, and so it is cheaper.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models.linear import Linear
from pfedlora_flwr.models.task import Task

WIDTH_FC2 = 500
SHAPES = {"cnn1": (32, 2000), "cnn2": (16, 2000), "cnn3": (32, 1000), "cnn4": (32, 800), "cnn5": (32, 500)}
"""Filters of the second convolution and width of FC1."""
KERNEL, SMALLEST = 5, 16
"""Of both convolutions; and the smallest image of which they leave anything."""


class ClientModel(nn.Module):
    """A classifier in two parts: `encode` gives a representation R, `head` makes logits of it.

    `layers` says where they part: the head is the last linear layer (1, the default), or, in the CNNs, the last two (2).
    A model whose head is one linear layer parts there for both.
    """

    widths: tuple[int, int]
    """Width of R for `layers` of 1 and 2."""
    description = "a model of its own"
    """What a model card calls it: the name that it was built by, or the names of what it is made of."""

    @property
    def width(self) -> int:
        """Width of the last layer's input."""
        return self.widths[0]

    def encode(self, images: Tensor, layers: int = 1) -> Tensor:
        """Inputs, [B, *shape] of the Task → R, [B, width]."""
        raise NotImplementedError

    def head(self, representation: Tensor, layers: int = 1) -> Tensor:
        """R → logits, [B, classes]."""
        raise NotImplementedError

    def last_layer(self) -> nn.Linear:
        """The layer that makes logits."""
        raise NotImplementedError

    def drop_last_layer(self) -> None:
        """Leaves the extractor alone: from here on only `encode` can be called."""
        raise NotImplementedError

    def own_names(self) -> dict[str, str]:
        """By the name of a tensor in the state_dict, its name in that of the module that the model was made of, where there is one."""
        return {name: name for name in self.state_dict()}

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encode(images))


class WithLast(ClientModel):
    """A model whose head is its layer `last`."""

    last: nn.Linear

    def head(self, representation: Tensor, layers: int = 1) -> Tensor:
        return self.last(representation)

    def last_layer(self) -> nn.Linear:
        return self.last

    def drop_last_layer(self) -> None:
        del self.last


class Family(ClientModel):
    """What the families have in common: FC1 and FC2, each with a ReLU after it, and FC3.

    R is the output of FC2, of one width for all of a family, or, before the last two layers, that of FC1, whose width is the model's own.
    """

    kind: ClassVar[str]
    """Of the inputs: images, series or vectors."""
    fc2: nn.Linear
    fc3: nn.Linear

    def trunk(self, inputs: Tensor) -> Tensor:
        """[B, *shape] → the output of FC1."""
        raise NotImplementedError

    def encode(self, images: Tensor, layers: int = 1) -> Tensor:
        x = self.trunk(images)
        return x if layers == 2 else torch.relu(self.fc2(x))

    def head(self, representation: Tensor, layers: int = 1) -> Tensor:
        return self.fc3(torch.relu(self.fc2(representation)) if layers == 2 else representation)

    def last_layer(self) -> nn.Linear:
        return self.fc3

    def drop_last_layer(self) -> None:
        del self.fc3


class CNN(Family):
    """CNN-1 … CNN-5. R is 500 wide for all five, or 2000 … 500 before the last two layers.

    The paper's images are 32 × 32, of which 5 × 5 are left before FC1; of larger ones more are, and FC1 grows with them.
    """

    kind = "images"

    def __init__(self, name: str, task: Task, width_fc2: int = WIDTH_FC2) -> None:
        super().__init__()
        filters, width = SHAPES[name]
        channels, *sides = task.shape
        rows, columns = (left(side) for side in sides)
        if min(rows, columns) < 1:
            raise UserError(f"model {name!r} takes images of at least {SMALLEST} × {SMALLEST}, and they are {sides[0]} × {sides[1]}")
        self.conv1 = nn.Conv2d(channels, 16, KERNEL)
        self.conv2 = nn.Conv2d(16, filters, KERNEL)
        self.fc1 = Linear(rows * columns * filters, width)
        self.fc2 = Linear(width, width_fc2)
        self.fc3 = Linear(width_fc2, task.classes)
        self.widths = width_fc2, width

    def trunk(self, inputs: Tensor) -> Tensor:
        x = torch.relu(nn.functional.max_pool2d(self.conv1(inputs), 2))  # of 32 × 32: [B, 16, 14, 14]
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))  # [B, c2, 5, 5]
        return torch.relu(self.fc1(x.flatten(1)))


def left(side: int) -> int:
    """Of a side of an image what is left before FC1: after two convolutions without padding, each pooled by 2."""
    return ((side - KERNEL + 1) // 2 - KERNEL + 1) // 2
