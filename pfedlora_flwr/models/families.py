"""Five models each for vectors and for series, built like the paper's five CNNs: of different size,
with the same representation width.

The paper has none: their sizes are ours, for tables of tens of columns and windows of some hundred
steps (docs/fidelity.md)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models.linear import Linear
from pfedlora_flwr.models.model import Family
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.kinds import SERIES, VECTORS

WIDTH = 128
"""Of R, for all ten."""
FC1 = (512, 512, 256, 192, 128)
"""Width of FC1, from the largest model to the smallest."""
MLP_SHAPES = {
    f"mlp{i + 1}": shape for i, shape in enumerate(zip((256, 128, 256, 256, 256), FC1, strict=True))
}
"""Width of the first layer, and of FC1."""
CONV1D_SHAPES = {
    f"conv1d{i + 1}": shape for i, shape in enumerate(zip((32, 16, 32, 32, 32), FC1, strict=True))
}
"""Filters of the second convolution, and width of FC1."""
SHORTEST = 4


class MLP(Family):
    """MLP-1 … MLP-5, of vectors: a first layer with a ReLU, then FC1 to FC3."""

    kind = VECTORS

    def __init__(self, name: str, task: Task, width_fc2: int = WIDTH) -> None:
        super().__init__()
        first, width = MLP_SHAPES[name]
        self.first = Linear(task.shape[0], first)
        self.connect(first, (width, width_fc2), task.classes)

    def trunk(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.fc1(torch.relu(self.first(inputs))))


class Conv1d(Family):
    """Conv1d-1 … Conv1d-5, of series: two convolutions along time, each pooled by 2, then FC1 to
    FC3.

    They are padded, unlike the CNNs', so that short windows keep their length: a quarter of it
    reaches FC1."""

    kind = SERIES

    def __init__(self, name: str, task: Task, width_fc2: int = WIDTH) -> None:
        super().__init__()
        filters, width = CONV1D_SHAPES[name]
        channels, time = task.shape
        if time < SHORTEST:
            raise UserError(
                f"model {name!r} takes series of at least {SHORTEST} steps, and they have {time}"
            )
        self.conv1 = nn.Conv1d(channels, 16, 5, padding=2)
        self.conv2 = nn.Conv1d(16, filters, 5, padding=2)
        self.connect(time // 2 // 2 * filters, (width, width_fc2), task.classes)

    def trunk(self, inputs: Tensor) -> Tensor:
        x = torch.relu(nn.functional.max_pool1d(self.conv1(inputs), 2))  # [B, 16, T/2]
        x = torch.relu(nn.functional.max_pool1d(self.conv2(x), 2))  # [B, c2, T/4]
        return torch.relu(self.fc1(x.flatten(1)))
