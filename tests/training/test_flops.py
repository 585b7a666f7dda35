"""Operations: the worked example to the unit, and every count against PyTorch's own counter."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods import fedkd
from pfedlora_flwr.models import linear
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.cnn import SHAPES
from pfedlora_flwr.models.registry import build
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.flops import count_operations
from tests.plain import CELLS, make, samples, visit


@pytest.fixture(autouse=True)
def _plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's counter does not know oneDNN's products."""
    monkeypatch.setattr(linear, "_AVAILABLE", False)


def spent(method_name: str, n: int, **keys: object) -> dict[str, int]:
    method = make(from_flat({"method": method_name, "batch-size": 4, **keys}))
    made = visit(method.experiment)
    data = samples([i % 3 for i in range(n)])
    method.local_update(
        method.private_init(0, 1), method.download(method.state_init(1), 0, 1), data, made
    )
    return made.flops


def test_the_worked_example() -> None:
    """CNN-1, C=10, h=60, E=1, a sample: Standalone 27,073,200; pFedLoRA 27,195,600 and 9,765,200."""
    assert spent("standalone", 1) == {"model": 27_073_200}
    assert spent("pfedlora", 1) == {"model": 27_195_600, "adapter": 9_765_200}


def test_operations_grow_with_samples_and_epochs_and_cached_features_are_counted_once() -> None:
    assert spent("standalone", 10, **{"local-epochs": 3}) == {"model": 27_073_200 * 10 * 3}
    features, step = 2 * 4_820_800, 9_765_200 - 2 * 4_820_800
    assert spent("pfedlora", 10, **{"local-epochs": 3}) == {
        "model": 27_195_600 * 30,
        "adapter": 10 * features + 30 * step,
    }


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("name", list(SHAPES))
def test_models_against_torch(name: str, classes: int) -> None:
    model, images = build(name, Task(classes)), torch.randn(3, 3, 32, 32)
    agrees(model, images)


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize(
    ("kind", "width", "hidden"), [("reduced", 2000, 300), ("decomposed", 500, 60)]
)
def test_adapters_against_torch(kind: str, width: int, hidden: int, wants_gradient: bool) -> None:
    agrees(Adapter(width, hidden, 10, kind), torch.randn(3, width, requires_grad=wants_gradient))
    frozen = Adapter(width, hidden, 10, kind).requires_grad_(False)
    agrees(frozen, torch.randn(3, width, requires_grad=True))


@pytest.mark.parametrize(
    "layer", [nn.Linear(7, 5), nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3, stride=2, padding=1)]
)
def test_layers_against_torch(layer: nn.Module) -> None:
    shape = (2, 7) if isinstance(layer, nn.Linear) else (2, layer.in_channels, 9, 9)
    agrees(layer, torch.randn(shape))
    agrees(layer, torch.randn(shape, requires_grad=True))


@pytest.mark.parametrize("layer", [nn.Conv1d(3, 4, 5), nn.Conv1d(4, 6, 3, stride=2, padding=1)])
def test_convolutions_of_series_against_torch(layer: nn.Conv1d) -> None:
    agrees(layer, torch.randn(2, layer.in_channels, 20))
    agrees(layer, torch.randn(2, layer.in_channels, 20, requires_grad=True))


@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_recurrent_layers_by_hand(layers: int, directions: int, wants_gradient: bool) -> None:
    """A GRU has 3 gates: each reads the inputs, [B, T, 5], or the layer below, and its own state, 7 numbers a direction."""
    module = nn.GRU(5, 7, layers, batch_first=True, bidirectional=directions == 2)
    reads = [5 if layer == 0 else 7 * directions for layer in range(layers)]
    forward = 2 * 11 * directions * sum(3 * 7 * (width + 7) for width in reads)
    inputs = torch.randn(2, 11, 5, requires_grad=wants_gradient)
    with count_operations() as ours:
        module(inputs)
    assert ours.forward == 2 * forward
    of_inputs = 2 * 11 * directions * 3 * 7 * 5
    assert ours.backward == 2 * (forward + forward - (0 if wants_gradient else of_inputs))
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.randn(2, 11, 5), torch.tensor([11, 4]), batch_first=True
    )
    with torch.no_grad(), count_operations() as ours:
        module(packed)
    assert ours.forward == 2 * forward // 22 * 15


def agrees(module: nn.Module, inputs: torch.Tensor) -> None:
    """Forward alone, then forward and backward."""
    with torch.no_grad(), FlopCounterMode(display=False) as theirs, count_operations() as ours:
        module(inputs)
    assert (ours.forward, ours.backward) == (theirs.get_total_flops(), 0)
    with FlopCounterMode(display=False) as theirs, count_operations() as ours:
        module(inputs).sum().backward()
    assert ours.total == theirs.get_total_flops()
    assert ours.backward > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "setting"), CELLS)
def test_whole_visits_against_torch(
    name: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a client's training executes. (FedKD's compression is no training: it is left out on both sides.)"""
    monkeypatch.setattr(fedkd, "compress", lambda tensors, energy: tensors)
    monkeypatch.setattr(fedkd, "decompress", lambda sent, like: sent)
    with FlopCounterMode(display=False) as counter:
        ours = spent(name, 10, setting=setting, **{"local-epochs": 2})  # batches of 4, 4 and 2
    assert sum(ours.values()) == counter.get_total_flops()
