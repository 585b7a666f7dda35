"""nn.Linear on oneDNN, the library that PyTorch uses for convolutions on the CPU, on processors
where it is faster.

PyTorch sends fp32 matrix products to MKL, which takes AVX2 code on AMD processors; oneDNN takes
AVX-512 where there is one, and is up to twice as fast there (tried on Zen 5). Elsewhere MKL is
faster at every size that was tried: on an Intel Xeon with AVX-512 133 against 101 GFLOP/s for 800 →
500, on an AMD EPYC without it 55 against 46 (benchmarks/RECORDS.md). So the rule is by maker,
AVX-512 and size, fixed, and a run's bits depend on no measurement. `torch.nn.functional.linear` is
the reference, and tests hold the two equal to rounding."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pfedlora_flwr.training.flops import one_product

_WORTH = 2**14
"""Weights below this size gain nothing: the call costs more than the product."""
_GAINS = "AuthenticAMD", "AVX512"
"""The maker of processors that gain, and PyTorch's word for the instructions they need."""


def maker_of_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's maker as Linux names it, such as GenuineIntel; empty where it names none."""
    with suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("vendor_id"):
                return line.partition(":")[2].strip()
    return ""


def faster_there(maker: str, instructions: str) -> bool:
    """Whether large products go to oneDNN on a processor of this maker, if PyTorch uses these
    instructions (`torch.backends.cpu.get_cpu_capability`)."""
    return (
        (maker, instructions) == _GAINS
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


_AVAILABLE = faster_there(maker_of_cpu(), torch.backends.cpu.get_cpu_capability())


class Linear(nn.Linear):
    """nn.Linear whose large fp32 products run on oneDNN when they are on the CPU. [B, in] → [B,
    out]."""

    @one_product
    def forward(self, input: Tensor) -> Tensor:
        if (
            _AVAILABLE
            and input.device.type == "cpu"
            and input.dtype == torch.float32
            and input.ndim == 2
            and not torch.compiler.is_compiling()  # an exported program must run without oneDNN
            and self.weight.numel() >= _WORTH
            and not torch.is_autocast_enabled("cpu")
        ):
            return _OneDnn.apply(input, self.weight, self.bias)
        return super().forward(input)


def layer_of(weight: Tensor, bias: Tensor) -> Linear:
    """A layer of these."""
    with torch.device("meta"):  # nothing is drawn
        layer = Linear(weight.shape[1], weight.shape[0])
    layer.weight = nn.Parameter(weight.detach())
    layer.bias = nn.Parameter(bias.detach())
    return layer


class _OneDnn(torch.autograd.Function):
    """y = x Wᵀ + b, and its gradients: three products, each as one oneDNN call on views."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if wants_x else None,
            _product(gradient.t(), x.t()) if wants_weight else None,
            gradient.sum(0) if wants_bias else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b; [m, k], [n, k], [n] → [m, n]."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
