"""A user's own client model whose representation is narrower than the CNNs'."""

from __future__ import annotations

import torch


class Narrow(torch.nn.Module):
    """Its representation is 16 wide."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 16))
        self.head = torch.nn.Linear(16, classes)
