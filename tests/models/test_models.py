"""Every model and adapter has the parameters of the paper's tables, the cut is exact, and the
initialisations are what they say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.cnn import SHAPES
from pfedlora_flwr.models.cost import forward_flops, sample_flops
from pfedlora_flwr.models.registry import build
from pfedlora_flwr.models.task import Task

PARAMETERS = {
    "cnn1": (2_621_558, 2_666_648),
    "cnn2": (1_815_142, 1_860_232),
    "cnn3": (1_320_558, 1_365_648),
    "cnn4": (1_060_358, 1_105_448),
    "cnn5": (670_058, 715_148),
}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", list(SHAPES))
def test_parameters_of_the_models(name: str) -> None:
    assert (count(build(name, Task(10))), count(build(name, Task(100)))) == PARAMETERS[name]


ADAPTERS = {
    ("reduced", 2000, 10): {100: 201_110, 500: 1_005_510},
    ("reduced", 2000, 100): {100: 210_200, 500: 1_050_600},
    ("decomposed", 500, 10): {20: 10_230, 40: 20_450, 60: 30_670, 80: 40_890},
    ("decomposed", 500, 100): {20: 12_120, 40: 24_140, 60: 36_160, 80: 48_180},
}
"""By kind, width and classes, the hidden width and the parameters."""


@pytest.mark.parametrize(("kind", "width", "classes"), ADAPTERS)
def test_parameters_of_the_adapters(kind: str, width: int, classes: int) -> None:
    expected = ADAPTERS[kind, width, classes]
    assert {h: count(Adapter(width, h, classes, kind)) for h in expected} == expected


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_model_is_the_papers_layer_by_layer_wherever_it_parts(name: str) -> None:
    """ReLU before the pooling, as the paper has it: the same function as ours, which pools
    first."""
    model = build(name, Task(10))
    images = torch.randn(4, 3, 32, 32)
    plain = nn.Sequential(
        model.conv1,
        nn.ReLU(),
        nn.MaxPool2d(2),
        model.conv2,
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        model.fc1,
        nn.ReLU(),
        model.fc2,
        nn.ReLU(),
    )
    assert torch.equal(model.encode(images), plain(images))
    assert torch.equal(model(images), model.fc3(plain(images)))
    assert torch.equal(model.trunk(images), plain[:9](images))
    assert (model.width, model.trunk_width) == (500, SHAPES[name][1])


def test_decomposed_has_nothing_between_and_reduced_a_relu() -> None:
    r = torch.randn(8, 500)
    for kind in ("decomposed", "reduced"):
        a = Adapter(500, 60, 10, kind)
        hidden = r @ a.down.weight.T + a.down.bias
        by_hand = (hidden.clamp(min=0) if kind == "reduced" else hidden) @ a.up.weight.T + a.up.bias
        assert torch.allclose(a(r), by_hand, atol=1e-5)


def test_lora_starts_gaussian_and_zero() -> None:
    torch.manual_seed(0)
    a = Adapter(2000, 200, 10, init="lora")
    assert not a.up.weight.any()
    assert not a.up.bias.any()
    assert a.down.weight.std().item() == pytest.approx(2000**-0.5, rel=0.02)
    assert Adapter(2000, 200, 10).up.weight.any()


def test_one_adapter_cannot_fit_different_widths() -> None:
    experiment = from_flat({"adapter.kind": "reduced"})
    with pytest.raises(
        UserError, match=r"cnn1 2000, cnn2 2000, cnn3 1000.*adapter.kind=decomposed"
    ):
        PFedLoRA(experiment, Task(10)).state_init(0)


def test_the_operations_of_one_input_are_of_the_models_that_train() -> None:
    task = Task(10)
    e = from_flat({"clients": 3, "clients-held-out": 1, "models": "cnn1,cnn5,cnn2"})
    trained = [forward_flops(name, task) for name in ("cnn1", "cnn5")]
    assert sample_flops(e, task) == sum(trained) / 2
