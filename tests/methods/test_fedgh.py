"""FedGH: whole rounds against a slow loop, the global header's training by hand, and what is
refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods.fedgh import FedGH
from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from pfedlora_flwr.training.flops import count_operations
from tests.methods import obvious, slow, slow_server
from tests.plain import make, samples, visit

KEYS = {
    "method": "fedgh",
    "seed": slow_server.SEED,
    "fedgh.server-lr": 0.3,
    "fedgh.server-epochs": 2,
    "fedgh.server-batch": 4,
}


def method(classes: int = 10, **keys: object) -> FedGH:
    made = make(from_flat({"method": "fedgh", "models": "cnn5", **keys}), classes)
    assert isinstance(made, FedGH)
    return made


def report(rows: dict[int, Tensor]) -> Upload:
    return Upload(
        {
            "classes": torch.tensor(sorted(rows)),
            "means": torch.stack([rows[c] for c in sorted(rows)]),
        },
        5,
    )


def a_report(classes: list[int], seed: int = 0) -> Upload:
    random = torch.Generator().manual_seed(seed)
    return report({c: torch.rand(500, generator=random) for c in classes})


def largest_difference(wrong: str = "") -> float:
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


@pytest.mark.slow
def test_two_rounds_are_those_of_a_slow_loop() -> None:
    assert largest_difference() < 1e-4


@pytest.mark.methods
@pytest.mark.parametrize("wrong", ["own header", "means before training", "order", "sum"])
def test_a_wrong_loop_is_noticed(wrong: str) -> None:
    assert largest_difference(wrong) > 1e-3


def test_one_report_is_one_step_of_softmax_regression() -> None:
    gh, upload = method(**{"fedgh.server-lr": 0.5}), a_report([3])
    state = gh.state_init(1)
    mean = obvious.array(upload.tensors["means"][0])
    error = (
        obvious.softmax(obvious.array(state["weight"]) @ mean + obvious.array(state["bias"]))
        - np.eye(10)[3]
    )
    new = gh.aggregate({4: upload}, state, 1)
    np.testing.assert_allclose(
        obvious.array(new["weight"]),
        obvious.array(state["weight"]) - 0.5 * np.outer(error, mean),
        atol=1e-6,
    )
    np.testing.assert_allclose(
        obvious.array(new["bias"]), obvious.array(state["bias"]) - 0.5 * error, atol=1e-6
    )


@pytest.mark.parametrize("batch", [0, 3, 10])
def test_the_header_learns_the_reports(batch: int) -> None:
    gh = method(**{"fedgh.server-batch": batch, "fedgh.server-epochs": 5})
    uploads = {k: a_report([k, k + 5], seed=k) for k in range(5)}
    rows, labels = (
        torch.cat([u.tensors[name] for u in uploads.values()]) for name in ("means", "classes")
    )
    state, losses = gh.state_init(1), []
    for round in range(1, 4):
        losses.append(
            obvious.cross_entropy(
                obvious.array(rows @ state["weight"].T + state["bias"]), labels.tolist()
            )
        )
        state = gh.aggregate(uploads, state, round)
    assert losses[0] > losses[1] > losses[2]


def test_aggregate_is_pure_and_its_operations_are_seen() -> None:
    gh = method()
    state, uploads = gh.state_init(1), {k: a_report([k, 9], seed=k) for k in range(6)}
    kept = {name: t.clone() for name, t in state.items()}
    torch.manual_seed(1)
    drawn = torch.get_rng_state()
    with count_operations() as operations:
        first = gh.aggregate(uploads, state, 3)
    assert torch.equal(torch.get_rng_state(), drawn), "nothing is drawn from the global generator"
    assert operations.total == 2 * 2 * 12 * 500 * 10, (
        "forward, and the weight's gradient, of 12 rows"
    )
    torch.rand(7)
    again, later = gh.aggregate(uploads, state, 3), gh.aggregate(uploads, state, 4)
    assert all(torch.equal(first[n], again[n]) and torch.equal(state[n], kept[n]) for n in state)
    assert not torch.equal(first["weight"], later["weight"]), "another round, another order"
    assert not first["weight"].requires_grad


def test_a_last_batch_of_one_and_one_class_alone() -> None:
    gh = method(**{"batch-size": 4})
    upload = gh.local_update(
        gh.private_init(0, 1), gh.state_init(1), samples([2] * 5), visit(gh.experiment)
    )
    assert upload.tensors["classes"].tolist() == [2]
    assert all(
        torch.isfinite(t).all() for t in gh.aggregate({0: upload}, gh.state_init(1), 1).values()
    )


def test_the_received_header_is_another_predictor() -> None:
    gh, data = method(), samples([0, 1, 2])
    model, received = gh.private_init(0, 1), gh.state_init(9)
    logits = gh.other_predictors(model, received)["global-header"](data.inputs)
    expected = obvious.array(model.encode(data.inputs)) @ obvious.array(
        received["weight"]
    ).T + obvious.array(received["bias"])
    np.testing.assert_allclose(obvious.array(logits), expected, atol=1e-5)


def test_a_client_that_misses_rounds_keeps_its_predictor() -> None:
    slow.assert_a_missed_round_changes_nothing(**KEYS)


@pytest.mark.parametrize(("change", "word"), slow.NO_REPORTS)
def test_refuses_what_is_no_report(change: dict[str, Tensor], word: str) -> None:
    gh = method()
    good, state = {"classes": torch.tensor([1, 3]), "means": torch.zeros(2, 500)}, gh.state_init(0)
    gh.check(Upload(good, 5), state, 0)
    with pytest.raises(Refused, match=word):
        gh.check(Upload(good | change, 5), state, 0)
    assert gh.largest_upload(state) == 10 * (8 + 4 * 500)
