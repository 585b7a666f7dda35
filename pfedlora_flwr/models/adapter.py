"""The two low-rank adapters A(θ) that take the place of a model's head (Section 4.3), and their two
initialisations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfedlora_flwr.models.linear import Linear
from pfedlora_flwr.rng import seeded


class Adapter(nn.Module):
    """Linear(width → h), Linear(h → classes); `reduced` has a ReLU between, `decomposed` has
    nothing.

    reduced: direct dimension reduction of FC2, after FC1. decomposed: matrix decomposition, after
    FC2. `lora` starts with a Gaussian first matrix (σ = 1/√width) and a zero second one (Section
    3.1), `random` with PyTorch's default."""

    scale: float = 1.0
    """Of what the first matrix gives, α/h."""

    def __init__(
        self, width: int, hidden: int, classes: int, kind: str = "decomposed", init: str = "random"
    ) -> None:
        super().__init__()
        self.reduced = kind == "reduced"
        self.down = Linear(width, hidden)
        self.up = Linear(hidden, classes)
        if init == "lora":
            with torch.no_grad():
                self.down.weight.normal_(0.0, width**-0.5)
                for zero in (self.down.bias, self.up.weight, self.up.bias):
                    zero.zero_()

    def fix_down(self, seed: int) -> None:
        """Makes the first matrix orthogonal, its bias zero, and trains neither."""
        with seeded(seed):
            nn.init.orthogonal_(self.down.weight)
        nn.init.zeros_(self.down.bias)
        self.down.requires_grad_(False)

    def set_down(self, weight: Tensor, bias: Tensor) -> None:
        """Sets the first matrix, [h, width], and its bias, [h], and trains neither."""
        with torch.no_grad():
            self.down.weight.copy_(weight)
            self.down.bias.copy_(bias)
        self.down.requires_grad_(False)

    def forward(self, representation: Tensor) -> Tensor:
        """R, [B, width] → logits, [B, classes]."""
        hidden = self.down(representation)
        if self.scale != 1:
            hidden = hidden * self.scale
        return self.up(torch.relu(hidden) if self.reduced else hidden)
