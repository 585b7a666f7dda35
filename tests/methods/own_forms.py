"""Modules of users' on one body, which is the same in every build: the forms that a client's own
model may have."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 12
MIXED, TARGETS = f"{__name__}:Mixed", "body.0,body.3,body.6"
"""The name of a model, and of its layers that LoRA is for."""


def body(width: int = WIDTH) -> nn.Sequential:
    """[B, 3, 32, 32] → [B, width]."""
    found = nn.Sequential(
        nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, width)
    )
    draws = torch.Generator().manual_seed(width)
    for parameter in found.parameters():
        parameter.data.normal_(0, 0.1, generator=draws)
    return found


class Parts(nn.Module):
    """`encoder` and `head`, without a forward."""

    width = WIDTH

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = body(self.width), nn.Linear(self.width, classes)


class Parted(Parts):
    """The same with one."""

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images))


class Whole(nn.Module):
    """The same layers under other names: one whole module."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.out = body(), nn.Linear(WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(self.body(images))


class Wide(Parted):
    """The same with another width."""

    width = 20


class Mixed(nn.Module):
    """Convolutions of 3×3 and 1×1 around statistics that are not the usual, and linear layers: LoRA
    of ranks that add up to 12 is fewer numbers than the first of these, and more than the others.
    None is square."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=4),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 16, 1),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(256, 48),
            nn.Tanh(),
            nn.Linear(48, WIDTH),
        )
        draws = torch.Generator().manual_seed(0)
        for tensor in (*self.body.parameters(), self.body[1].running_mean):
            tensor.data.normal_(0, 0.2, generator=draws)
        self.body[1].running_var.data.uniform_(0.5, 2, generator=draws)
        self.out = nn.Linear(WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(self.body(images))


class PartlyFrozen(Parted):
    """The same with an encoder of which the first layer is not trained by itself."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.encoder[2].requires_grad_(False)
