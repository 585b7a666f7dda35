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
    """A classifier in two parts. `encode` gives the representation R that the adapter sees, `head` makes logits of it.

    `penultimate` gives the input of the last layer, whatever the cut: FedProto's and FedKD's R.
    """

    width: int
    """Width of R."""
    penultimate_width: int

    def encode(self, images: Tensor) -> Tensor:
        """[B, 3, 32, 32] → R, [B, width]."""
        raise NotImplementedError

    def head(self, representation: Tensor) -> Tensor:
        """R → logits, [B, classes]."""
        raise NotImplementedError

    def penultimate(self, images: Tensor) -> Tensor:
        """[B, 3, 32, 32] → the last layer's input, [B, penultimate_width]."""
        raise NotImplementedError

    def last_layer(self) -> nn.Linear:
        """The layer that makes logits."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encode(images))


class CNN(ClientModel):
    """CNN-1 … CNN-5, cut after `fc1` (R is 2000 … 500 wide) or after `fc2` (500 wide for all five)."""

    def __init__(self, name: str, classes: int, cut: str = "fc2") -> None:
        super().__init__()
        filters, width = SHAPES[name]
        self.cut = cut
        self.conv1 = nn.Conv2d(3, 16, 5)
        self.conv2 = nn.Conv2d(16, filters, 5)
        self.fc1 = Linear(25 * filters, width)
        self.fc2 = Linear(width, WIDTH_FC2)
        self.fc3 = Linear(WIDTH_FC2, classes)
        self.width = width if cut == "fc1" else WIDTH_FC2
        self.penultimate_width = WIDTH_FC2

    def _fc1(self, images: Tensor) -> Tensor:
        x = torch.relu(nn.functional.max_pool2d(self.conv1(images), 2))  # [B, 16, 14, 14]
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))  # [B, c2, 5, 5]
        return torch.relu(self.fc1(x.flatten(1)))

    def encode(self, images: Tensor) -> Tensor:
        return self._fc1(images) if self.cut == "fc1" else self.penultimate(images)

    def head(self, representation: Tensor) -> Tensor:
        if self.cut == "fc1":
            representation = torch.relu(self.fc2(representation))
        return self.fc3(representation)

    def penultimate(self, images: Tensor) -> Tensor:
        return torch.relu(self.fc2(self._fc1(images)))

    def last_layer(self) -> nn.Linear:
        return self.fc3


class Custom(ClientModel):
    """A user's own module with `encoder` ([B, 3, 32, 32] → [B, width]) and `head` (a Linear) as a client model."""

    def __init__(self, module: nn.Module, width: int) -> None:
        super().__init__()
        self.module = module
        self.width = self.penultimate_width = width

    def encode(self, images: Tensor) -> Tensor:
        return self.module.encoder(images)  # type: ignore[operator]

    penultimate = encode

    def head(self, representation: Tensor) -> Tensor:
        return self.module.head(representation)  # type: ignore[operator]

    def last_layer(self) -> nn.Linear:
        return self.module.head  # type: ignore[return-value]
