"""The oneDNN linear layer against PyTorch's own, forwards and backwards, in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pfedlora_flwr.models import linear
from pfedlora_flwr.models.linear import Linear


@pytest.mark.parametrize(("batch", "width", "out"), [(64, 800, 2000), (64, 500, 60), (1, 300, 100), (3, 500, 10), (7, 400, 500)])
def test_outputs_and_gradients_are_those_of_functional_linear(batch: int, width: int, out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = Linear(width, out)
    images = torch.randn(batch, width, requires_grad=True)
    gradient = torch.randn(batch, out)
    ours = [layer(images), *torch.autograd.grad(layer(images), [images, layer.weight, layer.bias], gradient)]
    exact_images = images.detach().double().requires_grad_()
    w, b = layer.weight.detach().double().requires_grad_(), layer.bias.detach().double().requires_grad_()
    y = nn.functional.linear(exact_images, w, b)
    for mine, exact in zip(ours, [y, *torch.autograd.grad(y, [exact_images, w, b], gradient.double())], strict=True):
        assert (mine.double() - exact).norm() / exact.norm() < 1e-6


def test_a_frozen_layer_gets_no_gradient_and_passes_one_on() -> None:
    layer = Linear(500, 60).requires_grad_(False)
    images = torch.randn(8, 500, requires_grad=True)
    layer(images).sum().backward()
    assert layer.weight.grad is None
    assert torch.allclose(images.grad, layer.weight.sum(0).expand(8, -1), atol=1e-5)


def test_large_products_take_the_fast_path_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = linear._product
    monkeypatch.setattr(linear, "_product", lambda *a: calls.append(1) or original(*a))
    Linear(500, 10)(torch.randn(4, 500))
    assert not calls
    Linear(500, 60)(torch.randn(4, 500))
    assert len(calls) == int(linear._AVAILABLE)
