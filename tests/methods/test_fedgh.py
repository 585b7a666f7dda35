"""FedGH: whole rounds against a slow loop, the global header's training by hand, and what is
refused."""

from __future__ import annotations

import numpy as np
import torch

from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.training.flops import count_operations
from tests.conftest import keys_in
from tests.methods import obvious, slow, slow_server
from tests.plain import maker, samples

method = maker({"method": "fedgh", "models": "cnn5"})
KEYS = keys_in("method=fedgh fedgh.server-lr=0.3 fedgh.server-epochs=2 fedgh.server-batch=4") | {
    "seed": slow_server.SEED
}


WRONG = ("own header", "means before training", "order", "sum")


def difference(wrong: str = "") -> float:
    def turn(kept: Tensors, received: Tensors, client: slow.Client) -> Tensors:
        if wrong != "own header":
            kept["fc3.weight"].copy_(received["weight"])
            kept["fc3.bias"].copy_(received["bias"])
        if wrong == "means before training":
            sent = slow_server.report(kept, client)
        slow_server.train(kept, client)
        return sent if wrong == "means before training" else slow_server.report(kept, client)

    def server(
        sent: dict[int, Tensors], counts: dict[int, int], state: Tensors, round: int
    ) -> Tensors:
        """Softmax regression, its gradient by hand."""
        reports = slow_server.rows(sent)
        weight, bias = state["weight"].clone(), state["bias"].clone()
        for index in slow_server.batches(
            len(reports), 4, 2, "other" if wrong == "order" else "header", round
        ):
            gw, gb = torch.zeros_like(weight), torch.zeros_like(bias)
            for i in index:
                c, mean = reports[i]
                error = (weight @ mean + bias).softmax(0) - torch.eye(10, dtype=torch.float64)[c]
                gw += torch.outer(error, mean)
                gb += error
            n = 1 if wrong == "sum" else len(index)
            weight, bias = weight - 0.3 * gw / n, bias - 0.3 * gb / n
        return {"weight": weight, "bias": bias}

    return slow.largest_difference(turn, server, **KEYS)


def test_the_servers_operations_are_seen() -> None:
    gh = method()
    uploads = {k: slow_server.a_report([k, 9], seed=k) for k in range(6)}
    with count_operations() as operations:
        gh.aggregate(uploads, gh.state_init(1), 3)
    assert operations.total == 2 * 2 * 12 * 500 * 10, (
        "forward, and the weight's gradient, of 12 rows"
    )


def test_the_received_header_is_another_predictor() -> None:
    gh, data = method(), samples([0, 1, 2])
    model, received = gh.private_init(0, 1), gh.state_init(9)
    logits = gh.other_predictors(model, received)["global-header"](data.inputs)
    expected = obvious.array(model.encode(data.inputs)) @ obvious.array(
        received["weight"]
    ).T + obvious.array(received["bias"])
    np.testing.assert_allclose(obvious.array(logits), expected, atol=1e-5)
