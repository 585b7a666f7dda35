"""Operations, counted from the modules as they run: 2·MAC forward, and as much again backward for each gradient that is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook


@dataclass
class Operations:
    """Floating-point operations of the Linear, Conv1d and Conv2d calls seen; biases, activations and pooling are not counted."""

    forward: int = 0
    backward: int = 0

    @property
    def total(self) -> int:
        return self.forward + self.backward


@contextmanager
def count_operations() -> Iterator[Operations]:
    """Counts what runs inside, in this thread's process. Backward is what autograd will do for the graph that is built:
    a pass of 2·MAC for the weight's gradient if it wants one, another for the input's (docs/fidelity.md, Measures)."""
    seen = Operations()

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            return
        operations = 2 * macs(module, output)
        seen.forward += operations
        if torch.is_grad_enabled() and output.requires_grad:
            seen.backward += operations * (int(module.weight.requires_grad) + int(inputs[0].requires_grad))

    handle = register_module_forward_hook(count)
    try:
        yield seen
    finally:
        handle.remove()


def macs(module: nn.Linear | nn.Conv1d | nn.Conv2d, output: Tensor) -> int:
    """Multiply-adds of one call: every output element is a dot product over the weights of its output feature."""
    return output.numel() * module.weight[0].numel()
