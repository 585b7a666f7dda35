"""A GPU that is none: tensors that say they are on one, and whose numbers are on the CPU. An
operator that meets tensors of two devices raises, as a GPU's would.

What it does not show: memory, streams, CUDA graphs, a GPU's own kernels and their rounding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

from pfedlora_flwr.data import local
from pfedlora_flwr.training import graphs, loop

GPU = torch.device("cuda:0")
_ACROSS = (torch.ops.aten.copy_.default,)
"""Operators that take tensors of two devices: they carry numbers over."""


class OnGpu(Tensor):
    """held: its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnGpu:
        made: OnGpu = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=GPU,
        )
        made.held = held
        return made

    def __repr__(self, **how: Any) -> str:  # type: ignore[override]
        return f"OnGpu({self.held!r})"

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        assert isinstance(other, OnGpu)
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.held = other.held

    # by these two PyTorch knows that a parameter's data cannot be set, but is swapped
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *meta: Any) -> OnGpu:
        return OnGpu(inner["held"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Sees also what makes a tensor on the GPU, or takes one there."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator on the numbers. What it makes is where its arguments are, or where it is asked
    for."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    on_gpu = [isinstance(tensor, OnGpu) for tensor in tensors]
    asked = kwargs.get("device")
    to_gpu = any(on_gpu) if asked is None else torch.device(asked).type == "cuda"
    # a number on the CPU may meet a GPU's tensors, element by element
    numbers = torch.Tag.pointwise in func.tags
    strangers = [
        t for t, on in zip(tensors, on_gpu, strict=True) if not on and (t.ndim or not numbers)
    ]
    if any(on_gpu) and strangers and func not in _ACROSS:
        raise RuntimeError(f"{func}: tensors on {GPU} and on the CPU")
    generator = kwargs.get("generator")
    if to_gpu and generator is not None and generator.device.type != "cuda":
        raise RuntimeError(f"{func}: a tensor on {GPU} is drawn by a generator on the CPU")
    real_args, real_kwargs = tree_map_only(OnGpu, lambda t: t.held, (args, kwargs))
    if asked is not None:
        real_kwargs |= {"device": torch.device("cpu")}
    output = func(*real_args, **real_kwargs)
    if not to_gpu:
        return output
    output = tree_map_only(Tensor, OnGpu, output)
    return return_and_correct_aliasing(func, args, kwargs, output) if any(on_gpu) else output


def _backward(loss: Tensor) -> None:
    """`loss.backward()`, node by node in this thread: PyTorch's own has a thread for each GPU that
    there is. Raises RuntimeError for a gradient on another device than its tensor."""
    root: Any = loss.grad_fn
    order, seen, waiting = [], set[Any](), [(root, False)]
    while waiting:
        node, followed = waiting.pop()
        if followed:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            waiting.append((node, True))
            waiting += [(following, False) for following, _ in node.next_functions if following]
    gradients: dict[Any, dict[int, Tensor]] = defaultdict(dict)
    gradients[root] = {0: torch.ones_like(loss)}
    with torch.no_grad():
        for node in reversed(order):
            arrived = gradients.pop(node, {})
            if not arrived:
                continue
            if (leaf := getattr(node, "variable", None)) is not None:
                leaf.grad = arrived[0] if leaf.grad is None else leaf.grad + arrived[0]
                continue
            passed = node(*(arrived.get(i) for i in range(len(node._input_metadata))))
            passed = passed if isinstance(passed, tuple) else (passed,)
            for (following, i), gradient in zip(node.next_functions, passed, strict=True):
                if following is None or gradient is None:
                    continue
                wanted = following._input_metadata[i]
                if gradient.device != wanted.device:
                    raise RuntimeError(f"{node.name()}: its gradient is on {gradient.device}")
                gradient = gradient.sum_to_size(wanted.shape)
                held = gradients[following].get(i)
                gradients[following][i] = gradient if held is None else held + gradient


@contextmanager
def pretended() -> Iterator[torch.device]:
    """Within it there is such a GPU; steps run on it eagerly."""
    # both as PyTorch's FakeTensorMode does it where there is no GPU: a device guard that does
    # nothing, and `torch.tensor(…, device=…)` in two steps, of which the second is seen
    torch._C._ensureCUDADeviceGuardSet()
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    with (
        pytest.MonkeyPatch.context() as patch,
        torch.backends.cudnn.flags(enabled=False),  # its operators have no numbers on the CPU
        _Mode(),
    ):
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**30))
        patch.setattr(Tensor, "backward", _backward)
        patch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
        patch.setattr(loop, "own_stream", lambda device: nullcontext())
        patch.setattr(graphs, "capture", lambda *args: None)
        patch.setattr(local, "_RESIDENT", {})
        try:
            yield GPU
        finally:
            torch._C._set_only_lift_cpu_tensors(before)
