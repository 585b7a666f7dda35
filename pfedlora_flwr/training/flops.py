"""Operations, counted from the modules as they run: 2·MAC forward, and as much again backward for each gradient that is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.rnn import PackedSequence


@dataclass
class Operations:
    """Floating-point operations of the calls seen of linear, convolutional and recurrent layers; biases, activations and pooling are not
    counted, nor are products that no such layer makes, as attention's."""

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
        weight: Any
        if isinstance(module, nn.RNNBase):
            forward, of_inputs = recurrent_macs(module, inputs[0])
            output, weight = output[0], module.weight_hh_l0
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            forward = of_inputs = macs(module, output)
            weight = module.weight
        else:
            return
        seen.forward += 2 * forward
        if torch.is_grad_enabled() and data_of(output).requires_grad:
            passed_on = forward if data_of(inputs[0]).requires_grad else forward - of_inputs
            seen.backward += 2 * (forward * int(weight.requires_grad) + passed_on)

    handle = register_module_forward_hook(count)
    try:
        yield seen
    finally:
        handle.remove()


def macs(module: nn.Linear | nn.Conv1d | nn.Conv2d, output: Tensor) -> int:
    """Multiply-adds of one call: every output element is a dot product over the weights of its output feature."""
    return output.numel() * module.weight[0].numel()


def recurrent_macs(module: nn.RNNBase, inputs: Tensor | PackedSequence) -> tuple[int, int]:
    """Multiply-adds of one call, every weight once a step of every sample; and those of them that read the inputs themselves."""
    data = data_of(inputs)
    steps = data.numel() // data.shape[-1]
    weights = {
        name: parameter.numel()
        for name, parameter in module.named_parameters()
        if name.startswith("weight")
    }
    return steps * sum(weights.values()), steps * sum(
        n for name, n in weights.items() if name.startswith("weight_ih_l0")
    )


def data_of(value: Tensor | PackedSequence) -> Tensor:
    """The numbers of a recurrent layer's inputs or outputs."""
    return value.data if isinstance(value, PackedSequence) else value
