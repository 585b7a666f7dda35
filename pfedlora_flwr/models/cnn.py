"""The paper's five CNNs (appendix, table of model structures), each cut into an encoder and a head.

No padding, no normalisation layers, no dropout. Max-pooling comes before ReLU: the two commute, and so it is cheaper.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfedlora_flwr.models.linear import Linear

WIDTH_FC2 = 500
SHAPES = {"cnn1": (32, 2000), "cnn2": (16, 2000), "cnn3": (32, 1000), "cnn4": (32, 800), "cnn5": (32, 500)}
"""Filters of the second convolution and width of FC1."""


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
        """[B, 3, 32, 32] → R, [B, width]."""
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

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encode(images))


class CNN(ClientModel):
    """CNN-1 … CNN-5. R is the output of FC2, 500 wide for all five, or, before the last two layers, that of FC1, 2000 … 500 wide."""

    def __init__(self, name: str, classes: int, width_fc2: int = WIDTH_FC2) -> None:
        super().__init__()
        filters, width = SHAPES[name]
        self.conv1 = nn.Conv2d(3, 16, 5)
        self.conv2 = nn.Conv2d(16, filters, 5)
        self.fc1 = Linear(25 * filters, width)
        self.fc2 = Linear(width, width_fc2)
        self.fc3 = Linear(width_fc2, classes)
        self.widths = width_fc2, width

    def encode(self, images: Tensor, layers: int = 1) -> Tensor:
        x = torch.relu(nn.functional.max_pool2d(self.conv1(images), 2))  # [B, 16, 14, 14]
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))  # [B, c2, 5, 5]
        x = torch.relu(self.fc1(x.flatten(1)))
        return x if layers == 2 else torch.relu(self.fc2(x))

    def head(self, representation: Tensor, layers: int = 1) -> Tensor:
        return self.fc3(torch.relu(self.fc2(representation)) if layers == 2 else representation)

    def last_layer(self) -> nn.Linear:
        return self.fc3

    def drop_last_layer(self) -> None:
        del self.fc3


class Custom(ClientModel):
    """A user's own module with `encoder` ([B, 3, 32, 32] → [B, width]) and `head` (a Linear) as a client model."""

    def __init__(self, module: nn.Module, width: int) -> None:
        super().__init__()
        self.module = module
        self.widths = width, width

    def encode(self, images: Tensor, layers: int = 1) -> Tensor:
        return self.module.encoder(images)  # type: ignore[operator]

    def head(self, representation: Tensor, layers: int = 1) -> Tensor:
        return self.module.head(representation)  # type: ignore[operator]

    def last_layer(self) -> nn.Linear:
        return self.module.head  # type: ignore[return-value]

    def drop_last_layer(self) -> None:
        self.module.head = nn.Identity()
