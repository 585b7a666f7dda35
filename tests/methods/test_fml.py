"""FML: whole rounds against a slow loop, peers that only teach, and the small model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.methods.mutual import kl, small_model
from pfedlora_flwr.models.registry import build
from pfedlora_flwr.models.task import Task
from tests.methods import obvious, slow, slow_server
from tests.plain import make


def test_kl_is_batchmean_and_its_peer_gets_no_gradient() -> None:
    learner, peer = (
        torch.randn(6, 4, generator=torch.Generator().manual_seed(i), requires_grad=True)
        for i in (1, 2)
    )
    loss = kl(learner, peer)
    assert loss.item() == pytest.approx(
        obvious.kl(obvious.array(peer), obvious.array(learner)), rel=1e-5
    )
    loss.backward()
    assert peer.grad is None
    difference = [
        obvious.softmax(q) - obvious.softmax(p)
        for q, p in zip(obvious.array(learner), obvious.array(peer), strict=True)
    ]
    np.testing.assert_allclose(obvious.array(learner.grad), np.stack(difference) / 6, atol=1e-6)
    assert kl(peer, peer).item() == pytest.approx(0, abs=1e-6)


KEYS = {"method": "fml", "seed": slow_server.SEED, "fml.alpha": 0.3, "fml.beta": 0.8}
WRONG = ("swapped", "peers learn, too", "from the learner", "of classes")


def difference(wrong: str = "") -> float:
    """α CE + (1 − α) KL(p_θ ‖ p_ω) for ω, β CE + (1 − β) KL(p_ω ‖ p_θ) for θ; a peer is fixed."""
    alpha, beta = (0.8, 0.3) if wrong == "swapped" else (0.3, 0.8)

    def divergence(learner: Tensor, peer: Tensor) -> Tensor:
        q, p = learner.softmax(1), peer.softmax(1)
        p = p if wrong == "peers learn, too" else p.detach()
        if wrong == "from the learner":
            q, p = p, q
        return (p * (p.log() - q.log())).sum() / (p.numel() if wrong == "of classes" else len(p))

    def turn(kept: Tensors, received: Tensors, client: slow.Client) -> Tensors:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            own, small = (slow.layer(p, "fc3", slow.extract(p, x)) for p in (kept, received))
            of_own = alpha * cross_entropy(own, y) + (1 - alpha) * divergence(own, small)
            return of_own + beta * cross_entropy(small, y) + (1 - beta) * divergence(small, own)

        client.sgd([*kept.values(), *received.values()], loss)
        return received

    return slow.largest_difference(turn, **KEYS)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({}, "cnn5"),
        ({"setting": "homogeneous"}, "cnn1"),
        ({"models": "cnn2,cnn3"}, "cnn3"),
        ({"models": "cnn4"}, "cnn4"),
    ],
)
def test_small_model_is_the_smallest_client_model(keys: dict[str, object], name: str) -> None:
    shapes = {n: t.shape for n, t in build(name, Task(10)).state_dict().items()}
    assert {
        n: t.shape for n, t in small_model(make(from_flat(keys))).state_dict().items()
    } == shapes
