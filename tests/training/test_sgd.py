"""Our SGD beside PyTorch's: the same bits, without its compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from pfedlora_flwr.training.sgd import SGD


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5), nn.Linear(5, 5))


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.9, 0.0), (0.0, 0.0), (0.9, 1e-3), (0.0, 0.1)])
def test_it_steps_like_torchs_to_the_last_bit(momentum: float, weight_decay: float) -> None:
    """The last layer gets no gradient: it stays, as with PyTorch's."""
    ours, theirs = network(), network()
    optimizers: tuple[Any, Any] = (
        SGD(list(ours.parameters()), 0.1, momentum, weight_decay),
        torch.optim.SGD(theirs.parameters(), 0.1, momentum, weight_decay=weight_decay, fused=True),
    )
    for step in range(5):
        inputs = torch.randn(8, 20, generator=torch.Generator().manual_seed(step))
        for net, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            net[:3](inputs).square().mean().backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert not torch.equal(ours[0].weight, network()[0].weight)
    assert torch.equal(ours[3].weight, network()[3].weight)


@pytest.mark.slow
def test_a_visit_leaves_pytorchs_compiler_alone() -> None:
    code = (
        "import sys; from tests.plain import Plain; Plain({'clients': 1, 'partition.kind': 'iid'}).train(1); "
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
