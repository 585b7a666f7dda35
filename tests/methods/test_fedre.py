"""FedRE: whole rounds against a slow loop, mixtures that sum to 1, and a sum of weighted
cross-entropies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from tests.conftest import keys_in
from tests.methods import slow, slow_server
from tests.plain import maker

method = maker({"method": "fedre", "models": "cnn5"})
KEYS = keys_in("method=fedre fedre.server-lr=0.2 fedre.server-epochs=3 fedre.server-batch=1") | {
    "seed": slow_server.SEED
}


def mixture(weights: dict[int, float], seed: int = 0) -> Upload:
    label = torch.tensor([weights.get(c, 0.0) for c in range(10)])
    return Upload(
        {
            "representation": torch.rand(500, generator=torch.Generator().manual_seed(seed)),
            "label": label,
        },
        5,
    )


WRONG = ("softmax", "plain mean", "mean")


def difference(wrong: str = "") -> float:
    return max(_difference(wrong, batch) for batch in ((32,) if wrong else (1, 32)))


def _difference(wrong: str, batch: int) -> float:
    def turn(kept: Tensors, received: Tensors, client: slow.Client) -> Tensors:
        kept["fc3.weight"].copy_(received["weight"])
        kept["fc3.bias"].copy_(received["bias"])
        slow_server.train(kept, client)
        report = slow_server.report(kept, client)
        drawn = 1 - torch.rand(len(report["classes"]), generator=client.generator).double()
        weights = drawn.softmax(0) if wrong == "softmax" else drawn / drawn.sum()
        representation, label = torch.zeros(500).double(), torch.zeros(10).double()
        for w, c, mean in zip(
            weights, report["classes"].int().tolist(), report["means"], strict=True
        ):
            representation += mean / len(weights) if wrong == "plain mean" else w * mean
            label[c] += w
        return {"representation": representation, "label": label}

    def server(
        sent: dict[int, Tensors], counts: dict[int, int], state: Tensors, round: int
    ) -> Tensors:
        """Σ_c ỹ_c · (gradient of softmax regression with label c), by hand."""
        weight, bias = state["weight"].clone(), state["bias"].clone()
        vectors = [sent[k] for k in sorted(sent)]
        for index in slow_server.batches(len(vectors), batch, 3, "header", round):
            gw, gb = torch.zeros_like(weight), torch.zeros_like(bias)
            for i in index:
                r, label = vectors[i]["representation"], vectors[i]["label"]
                p = (weight @ r + bias).softmax(0)
                error = sum(
                    label[c] * (p - torch.eye(10, dtype=torch.float64)[c]) for c in range(10)
                )
                gw += torch.outer(error, r) / (len(index) if wrong == "mean" else 1)
                gb += error / (len(index) if wrong == "mean" else 1)
            weight, bias = weight - 0.2 * gw, bias - 0.2 * gb
        return {"weight": weight, "bias": bias}

    return slow.largest_difference(turn, server, **(KEYS | {"fedre.server-batch": batch}))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"label": torch.full((10,), 0.11)}, "sum to 1"),
        ({"label": torch.tensor([1.5, -0.5] + [0.0] * 8)}, "≥ 0"),
        ({"label": torch.full((10,), torch.nan)}, "≥ 0"),
    ],
)
def test_refuses_what_is_no_mixture(change: dict[str, Tensor], word: str) -> None:
    fedre = method()
    good, state = mixture({3: 0.5, 4: 0.5}).tensors, fedre.state_init(0)
    fedre.check(Upload(good, 5), state, 0)
    with pytest.raises(Refused, match=word):
        fedre.check(Upload(good | change, 5), state, 0)
    assert fedre.largest_upload(state) == 4 * 510
