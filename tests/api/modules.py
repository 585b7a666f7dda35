"""A model and a method that have an import path."""

from __future__ import annotations

from torch import nn

from pfedlora_flwr.methods.standalone import Standalone


class Small(nn.Module):
    """A small network for images of 3 × 32 × 32."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 8), nn.ReLU())
        self.head = nn.Linear(8, classes)


class Alone(Standalone):
    """Standalone by another name."""
