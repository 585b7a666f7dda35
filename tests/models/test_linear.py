"""The oneDNN linear layer against PyTorch's own, forwards and backwards, in double precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pfedlora_flwr.models import linear
from pfedlora_flwr.models.linear import Linear

AS_IMPORTED = linear._AVAILABLE


@pytest.fixture(autouse=True)
def _on_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of AMD's processors, on whatever processor this is."""
    monkeypatch.setattr(linear, "_AVAILABLE", torch.backends.mkldnn.is_available())


@pytest.mark.parametrize(
    ("batch", "width", "out"),
    [(64, 800, 2000), (64, 500, 60), (1, 300, 100), (3, 500, 10), (7, 400, 500)],
)
def test_outputs_and_gradients_are_those_of_functional_linear(
    batch: int, width: int, out: int
) -> None:
    torch.manual_seed(0)
    layer = Linear(width, out)
    inputs = torch.randn(batch, width, requires_grad=True)
    gradient = torch.randn(batch, out)
    ours = [
        layer(inputs),
        *torch.autograd.grad(layer(inputs), [inputs, layer.weight, layer.bias], gradient),
    ]
    exact_inputs = inputs.detach().double().requires_grad_()
    w, b = (
        layer.weight.detach().double().requires_grad_(),
        layer.bias.detach().double().requires_grad_(),
    )
    y = nn.functional.linear(exact_inputs, w, b)
    for mine, exact in zip(
        ours, [y, *torch.autograd.grad(y, [exact_inputs, w, b], gradient.double())], strict=True
    ):
        assert (mine.double() - exact).norm() / exact.norm() < 1e-6


def test_a_frozen_layer_gets_no_gradient_and_passes_one_on() -> None:
    layer = Linear(500, 60).requires_grad_(False)
    inputs = torch.randn(8, 500, requires_grad=True)
    layer(inputs).sum().backward()
    assert layer.weight.grad is None
    assert torch.allclose(inputs.grad, layer.weight.sum(0).expand(8, -1), atol=1e-5)


class Operations(TorchDispatchMode):
    """Notes the operations that PyTorch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.append(operation.name())
        return operation(*args, **(kwargs or {}))


@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN"
)
def test_large_products_run_on_onednn_and_small_ones_do_not() -> None:
    for out, fast in ((10, False), (60, True)):
        with Operations() as seen:
            Linear(500, out)(torch.randn(4, 500))
        assert ("mkldnn::_linear_pointwise" in seen.names) == fast
        assert ("aten::addmm" in seen.names) == (not fast)


@pytest.mark.parametrize(
    ("maker", "instructions", "fast"),
    [
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
        ("", "DEFAULT", False),
    ],
)
def test_only_on_amd_processors_with_avx512_products_go_to_onednn(
    maker: str, instructions: str, fast: bool, tmp_path: Path
) -> None:
    """By a fixed rule, in a process that sees such a processor."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\n" + (f"vendor_id\t: {maker}\n" if maker else ""))
    assert linear.maker_of_cpu(cpuinfo) == maker
    there = linear.faster_there(maker, instructions)
    assert there == (fast and torch.backends.mkldnn.is_available())
    assert linear.maker_of_cpu(tmp_path / "none") == ""


def test_the_rule_is_that_of_this_processor() -> None:
    used = linear.maker_of_cpu(), torch.backends.cpu.get_cpu_capability()
    assert linear.faster_there(*used) == AS_IMPORTED
