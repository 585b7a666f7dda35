"""Our optimisers beside PyTorch's: the same bits, without its compiler; the course of the learning
rate."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.training import optimizers
from pfedlora_flwr.training.optimizers import SGD, AdamW
from tests.plain import Plain


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5), nn.Linear(5, 5))


SAME: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    f"sgd {momentum} {decay}": (
        lambda p, m=momentum, d=decay: SGD(p, 0.1, m, d),
        lambda p, m=momentum, d=decay: torch.optim.SGD(p, 0.1, m, weight_decay=d, fused=True),
    )
    for momentum, decay in [(0.9, 0.0), (0.0, 0.0), (0.9, 1e-3), (0.0, 0.1)]
} | {
    f"adamw {decay}": (
        lambda p, d=decay: AdamW(p, 0.1, d),
        lambda p, d=decay: torch.optim.AdamW(p, 0.1, weight_decay=d, fused=True),
    )
    for decay in (0.0, 0.1)
}


@pytest.mark.parametrize("name", SAME)
def test_they_step_like_torchs_to_the_last_bit(name: str) -> None:
    """The last layer gets no gradient: it stays, as with PyTorch's."""
    nets = network(), network()
    optimizers = [make(list(net.parameters())) for make, net in zip(SAME[name], nets, strict=True)]
    for step in range(5):
        inputs = torch.randn(8, 20, generator=torch.Generator().manual_seed(step))
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            net[:3](inputs).square().mean().backward()
            optimizer.step()
    ours, theirs = nets
    assert all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    )
    assert not torch.equal(ours[0].weight, network()[0].weight)
    assert torch.equal(ours[3].weight, network()[3].weight)


def test_the_learning_rate_falls_like_torchs_cosine() -> None:
    e = from_flat({"rounds": 10, "lr-schedule": "cosine"})
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(
        torch.optim.SGD(network().parameters(), 1.0), 10
    )
    for round in range(1, 11):
        assert optimizers.scale(e, round) == pytest.approx(theirs.get_last_lr()[0])
        theirs.optimizer.step()
        theirs.step()


@pytest.mark.slow
def test_the_experiments_optimiser_trains() -> None:
    """A visit's steps are the optimiser's, with the round's learning rate."""
    left = {}
    for name, keys in {
        "adamw": {"optimizer": "adamw"},
        "cosine": {"lr-schedule": "cosine"},
        "sgd": {},
    }.items():
        plain = Plain(
            {"clients": 20, "participation": 0.05, "method": "standalone", "rounds": 2, **keys}
        )
        plain.play([0])
        left[name] = plain.models[0].state_dict()["fc3.weight"].clone(), plain
    assert torch.equal(left["cosine"][0], left["sgd"][0])  # a first round at the full rate
    assert not torch.equal(left["adamw"][0], left["sgd"][0])
    for name in ("cosine", "sgd"):
        left[name][1].play([0])
    assert not torch.equal(
        *(left[name][1].models[0].state_dict()["fc3.weight"] for name in ("cosine", "sgd"))
    )


@pytest.mark.slow
def test_a_visit_leaves_pytorchs_compiler_and_the_libraries_of_models_alone() -> None:
    code = (
        "import sys; import pfedlora_flwr.cli; from tests.plain import Plain; Plain({'clients': 1,"
        " 'partition.kind': 'iid', 'dataset': 'synthetic:30', 'models': 'cnn5'}).train(1);"
        " print({'torch._dynamo', 'timm', 'torchvision', 'huggingface_hub'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
