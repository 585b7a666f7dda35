"""FedSSA: whole rounds against a slow loop, the weight that decays, rows that stay, and what the
server remembers."""

from __future__ import annotations

import math

import pytest
import torch

from pfedlora_flwr.methods.method import Tensors
from tests.methods import slow, slow_server
from tests.plain import maker

method = maker({"method": "fedssa", "models": "cnn5", "batch-size": 8})
KEYS = {"method": "fedssa", "seed": slow_server.SEED, "fedssa.mu": 0.4, "fedssa.stable-rounds": 3}


WRONG = ("t", "all classes", "convex")


def difference(wrong: str = "") -> float:
    def turn(kept: Tensors, received: Tensors, client: slow.Client) -> Tensors:
        held = set(client.y.tolist())
        mu = 0.4 * math.cos(math.pi * (client.round - (0 if wrong == "t" else 1)) / 6)
        for c, row in zip(received["classes"].int().tolist(), received["means"], strict=True):
            if c in held or wrong == "all classes":
                own = 1 - mu if wrong == "convex" else 1
                kept["fc3.weight"][c] = own * row[:500] + mu * kept["fc3.weight"][c]
                kept["fc3.bias"][c] = own * row[500] + mu * kept["fc3.bias"][c]
        slow_server.train(kept, client)
        rows = [
            torch.cat([kept["fc3.weight"][c], kept["fc3.bias"][c : c + 1]]) for c in sorted(held)
        ]
        return {"classes": torch.tensor(sorted(held)).double(), "means": torch.stack(rows)}

    def server(
        sent: dict[int, Tensors], counts: dict[int, int], state: Tensors, round: int
    ) -> Tensors:
        return slow_server.remembered(sent, {} if wrong == "forgets" else state)

    def download(state: Tensors, client: int) -> Tensors:
        return slow_server.merged(state, 501)

    return slow.largest_difference(turn, server, download, **KEYS)


@pytest.mark.slow
def test_a_server_that_forgets_is_noticed() -> None:
    with pytest.raises(AssertionError):  # it knows fewer classes
        assert difference("forgets") < 1e-3


def test_own_weight_falls_to_zero() -> None:
    ssa = method(**{"fedssa.mu": 0.5, "fedssa.stable-rounds": 4})
    assert [ssa.own_weight(1 + t) for t in (0, 2, 4, 5, 400)] == [
        0.5,
        pytest.approx(0.5 * math.sqrt(0.5)),
        0,
        0,
        0,
    ]
