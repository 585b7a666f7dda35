"""Operations, counted from the modules as they run: 2·MAC forward, and as much again backward for
each gradient that is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import TorchDispatchMode

_FORWARDS: set[Any] = {nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward}
"""Of the layers that are counted by their modules, as recurrent ones are. A subclass with a forward
of its own may make further products: it is counted by its operators."""
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "convolution": 0}
"""By the name of PyTorch's operator: which of its arguments is the first of the two factors, which
the other one follows."""
_ATTENTION = "_scaled_dot_product_"
_WIDTH = {"_native_multi_head_attention": 3, "_transformer_encoder_layer_fwd": 1}
"""Operators that are a whole module of PyTorch's attention, without gradients: which argument is
its width."""
_FEEDFORWARD = 14
"""The argument of the second that is the first matrix of its feedforward part."""


@dataclass
class Operations:
    """Floating-point operations of the calls seen: of linear, convolutional and recurrent layers,
    and of the products that other modules make themselves, as attention's. Biases, activations and
    pooling are not counted."""

    forward: int = 0
    backward: int = 0

    @property
    def total(self) -> int:
        return self.forward + self.backward


def one_product(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Marks the forward of a layer's subclass that makes the layer's product alone, on operators
    that are not known here."""
    _FORWARDS.add(forward)
    return forward


@contextmanager
def count_operations() -> Iterator[Operations]:
    """Counts what runs inside, in this thread's process. Backward is what autograd will do for the
    graph that is built: a pass of 2·MAC for the weight's gradient if it wants one, another for the
    input's (docs/measures.md)."""
    seen = Operations()
    beside = _Products(seen)

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        beside.called.append((module, not is_layer(module)))

    def count(
        module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        if beside.left(module):
            return
        own = inputs[0] if inputs else next(iter(named.values()))
        if isinstance(module, nn.RNNBase):
            forward, of_inputs = recurrent_macs(module, own)
            output, weight = output[0], "weight_hh_l0"
        else:
            forward = of_inputs = macs(module, output)
            weight = "weight"
        seen.forward += 2 * forward
        if torch.is_grad_enabled() and data_of(output).requires_grad:
            passed_on = forward if data_of(own).requires_grad else forward - of_inputs
            seen.backward += 2 * (forward * is_trained(module, weight) + passed_on)

    handles = (
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(count, with_kwargs=True),
    )
    try:
        with beside:
            yield seen
    finally:
        for handle in handles:
            handle.remove()


class _Products(TorchDispatchMode):
    """Counts the products that modules make and no layer does, as PyTorch's operators run them. Of
    nested tensors those of PyTorch's own attention alone.

    called: the modules that are being called, from the outermost, and whether their own products
    are counted here."""

    def __init__(self, seen: Operations) -> None:
        super().__init__()
        self.seen, self.called = seen, list[tuple[nn.Module, bool]]()

    def left(self, module: nn.Module) -> bool:
        """Takes the module from those that are being called, with what an exception has left above
        it; whether its own products are counted here."""
        while True:
            last, by_operator = self.called.pop()
            if last is module:
                return by_operator

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to skip PyTorch's compiler, PyTorch imports it, 2 s in every new process."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if self.called and self.called[-1][1]:
            forward, backward = _macs_of(func.overloadpacket.__name__, args, output)
            self.seen.forward += 2 * forward
            self.seen.backward += 2 * backward * torch.is_grad_enabled()
        return output


def _macs_of(name: str, args: tuple[Any, ...], output: Any) -> tuple[int, int]:
    """Multiply-adds of an operator, and those of the gradients that its factors want."""
    if name in _WIDTH:
        return _fused_macs(name, args), 0
    if name in _PRODUCTS and not output.is_nested:
        left, right = args[_PRODUCTS[name] :][:2]
        if name == "convolution":
            transposed = args[6]
            forward = (left if transposed else output).numel() * right[0].numel()
        else:
            forward = output.numel() * left.shape[-1]
        return forward, forward * (left.requires_grad + right.requires_grad)
    if name.startswith(_ATTENTION) and not args[0].is_nested:
        query, key, value = args[:3]
        scores = query[..., 0].numel() * key.shape[-2]
        of_scores, forward = scores * query.shape[-1], scores * (query.shape[-1] + value.shape[-1])
        wanted = any(factor.requires_grad for factor in (query, key, value))
        return forward, wanted * (2 * forward + of_scores)  # they need the scores once more
    return 0, 0


def _fused_macs(name: str, args: tuple[Any, ...]) -> int:
    """Multiply-adds of PyTorch's self-attention, of [B, T, width] or, nested, B times [T_i, width]:
    four matrices, scores and values, and the feedforward part where there is one."""
    inputs, width = args[0], args[_WIDTH[name]]
    lengths: list[int] = (
        inputs._nested_tensor_size()[:, 0].tolist()
        if inputs.is_nested
        else [inputs.shape[1]] * inputs.shape[0]
    )
    matrices = 4 * width * width
    if name == "_transformer_encoder_layer_fwd":
        matrices += 2 * args[_FEEDFORWARD].numel()
    return sum(n * matrices + 2 * n * n * width for n in lengths)


def is_layer(module: nn.Module) -> bool:
    """Whether a module is counted as a layer."""
    forward = getattr(module.forward, "__func__", None)
    return isinstance(module, nn.RNNBase) or forward in _FORWARDS


def is_trained(module: nn.Module, name: str) -> bool:
    """Whether a weight wants a gradient. A parametrized one is not read: that computes it, and
    spectral_norm changes its vectors each time."""
    if is_parametrized(module, name):
        parametrizations: Any = module.parametrizations
        return any(p.requires_grad for p in parametrizations[name].parameters())
    return bool(getattr(module, name).requires_grad)


def macs(module: Any, output: Tensor) -> int:
    """Multiply-adds of one call of a linear or convolutional layer: every output element is a dot
    product over the weights of its output feature."""
    if isinstance(module, nn.Linear):
        return output.numel() * module.in_features
    return output.numel() * module.in_channels // module.groups * math.prod(module.kernel_size)


def recurrent_macs(module: nn.RNNBase, inputs: Tensor | PackedSequence) -> tuple[int, int]:
    """Multiply-adds of one call, every weight once a step of every sample; and those of them that
    read the inputs themselves."""
    data = data_of(inputs)
    steps = data.numel() // data.shape[-1]
    state = module.proj_size or module.hidden_size
    gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1) * module.hidden_size
    calls = steps * (1 + module.bidirectional)
    of_inputs = calls * gates * module.input_size
    of_states = calls * (gates * state + module.hidden_size * module.proj_size)
    from_below = calls * gates * state * (1 + module.bidirectional)
    layers = module.num_layers
    return of_inputs + layers * of_states + (layers - 1) * from_below, of_inputs


def data_of(value: Tensor | PackedSequence) -> Tensor:
    """The numbers of a recurrent layer's inputs or outputs."""
    return value.data if isinstance(value, PackedSequence) else value
