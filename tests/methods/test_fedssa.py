"""FedSSA: whole rounds against a slow loop, the weight that decays, rows that stay, and what the
server remembers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods.fedssa import FedSSA, rows_of
from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from tests.methods import slow, slow_server
from tests.plain import make, samples, visit

KEYS = {"method": "fedssa", "seed": slow_server.SEED, "fedssa.mu": 0.4, "fedssa.stable-rounds": 3}


def method(classes: int = 10, **keys: object) -> FedSSA:
    made = make(from_flat({"method": "fedssa", "models": "cnn5", "batch-size": 8, **keys}), classes)
    assert isinstance(made, FedSSA)
    return made


def report(rows: dict[int, float]) -> Upload:
    """By class, a row that has one value in all of its 501 places."""
    return Upload(
        {
            "classes": torch.tensor(sorted(rows)),
            "means": torch.tensor([[rows[c]] * 501 for c in sorted(rows)]),
        },
        5,
    )


def largest_difference(wrong: str = "") -> float:
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
        """By client and class, the last row."""
        memory = (
            {} if wrong == "forgets" else {name: row for name, row in state.items() if "/" in name}
        )
        for k, upload in sent.items():
            memory |= {
                f"{k}/{int(c)}": row
                for c, row in zip(upload["classes"], upload["means"], strict=True)
            }
        return memory

    def download(state: Tensors) -> Tensors:
        by_class: dict[int, list[Tensor]] = {}
        for name, row in state.items():
            if "/" in name:
                by_class.setdefault(int(name.split("/")[1]), []).append(row)
        means = [torch.stack(by_class[c]).mean(0) for c in sorted(by_class)]
        return {
            "classes": torch.tensor(sorted(by_class)).double(),
            "means": torch.stack(means) if means else torch.zeros(0, 501),
        }

    return slow.largest_difference(turn, server, download, **KEYS)


@pytest.mark.slow
def test_two_rounds_are_those_of_a_slow_loop() -> None:
    assert largest_difference() < 1e-4


@pytest.mark.methods
@pytest.mark.parametrize("wrong", ["t", "all classes", "convex"])
def test_a_wrong_loop_is_noticed(wrong: str) -> None:
    assert largest_difference(wrong) > 1e-3


@pytest.mark.slow
def test_a_server_that_forgets_is_noticed() -> None:
    with pytest.raises(AssertionError):  # it knows fewer classes
        assert largest_difference("forgets") < 1e-3


def test_own_weight_falls_to_zero() -> None:
    ssa = method(**{"fedssa.mu": 0.5, "fedssa.stable-rounds": 4})
    assert [ssa.own_weight(1 + t) for t in (0, 2, 4, 5, 400)] == [
        0.5,
        pytest.approx(0.5 * math.sqrt(0.5)),
        0,
        0,
        0,
    ]


def test_only_rows_of_held_and_known_classes_change_before_training() -> None:
    ssa, data = method(lr=1e-12), samples([0, 0, 3, 3, 7, 7])
    model = ssa.private_init(0, 1)
    before = rows_of(model).clone()
    received = report({0: 0.25, 3: -1.0, 5: 9.0}).tensors
    upload = ssa.local_update(model, received, data, visit(ssa.experiment))
    expected = before.clone()
    expected[0], expected[3] = 0.25 + 0.5 * before[0], -1.0 + 0.5 * before[3]
    assert torch.allclose(rows_of(model), expected, atol=1e-6), (
        "5 is not held, nobody has reported 7"
    )
    assert upload.tensors["classes"].tolist() == [0, 3, 7]
    assert torch.equal(upload.tensors["means"], rows_of(model)[[0, 3, 7]])


def test_global_rows_are_unweighted_means_of_the_reporters_last_ones() -> None:
    ssa = method()
    state = ssa.aggregate(
        {0: report({2: 1.0, 5: 8.0}), 1: Upload(report({2: 4.0}).tensors, 10_000)},
        ssa.state_init(0),
        1,
    )
    assert ssa.download(state, 7, 2)["means"][:, 0].tolist() == [2.5, 8.0]
    # client 0 misses round 2, and its rows stay
    state = ssa.aggregate({1: report({2: 5.0, 9: 3.0})}, state, 2)
    got = ssa.download(state, 7, 3)
    assert dict(zip(got["classes"].tolist(), got["means"][:, 500].tolist(), strict=True)) == {
        2: 3.0,
        5: 8.0,
        9: 3.0,
    }


def test_the_first_visit_is_standalone_to_the_bit() -> None:
    ssa, data = method(), samples([0, 3, 7] * 3)
    alone = make(ssa.experiment.replace(method="standalone"))
    one, two = ssa.private_init(0, 1), alone.private_init(0, 1)
    ssa.local_update(one, ssa.download(ssa.state_init(0), 0, 1), data, visit(ssa.experiment))
    alone.local_update(two, {}, data, visit(ssa.experiment))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_a_last_batch_of_one_and_one_class_alone() -> None:
    ssa = method(**{"batch-size": 4})
    upload = ssa.local_update(
        ssa.private_init(0, 1),
        ssa.download(ssa.state_init(1), 0, 1),
        samples([2] * 5),
        visit(ssa.experiment),
    )
    assert upload.tensors["classes"].tolist() == [2]
    assert torch.isfinite(upload.tensors["means"]).all()


def test_a_client_that_misses_rounds_keeps_its_predictor() -> None:
    slow.assert_a_missed_round_changes_nothing(**KEYS)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"means": torch.zeros(2, 500)}, "means"),
        ({"means": torch.zeros(2, 501, dtype=torch.float64)}, "float64"),
        ({"classes": torch.tensor([3, 3])}, "ascending"),
        ({"classes": torch.tensor([-1, 3])}, "0 to 9"),
    ],
)
def test_refuses_what_is_no_report(change: dict[str, Tensor], word: str) -> None:
    ssa = method()
    good, state = {"classes": torch.tensor([1, 3]), "means": torch.zeros(2, 501)}, ssa.state_init(0)
    ssa.check(Upload(good, 5), state, 0)
    with pytest.raises(Refused, match=word):
        ssa.check(Upload(good | change, 5), state, 0)
    assert ssa.largest_upload(state) == 10 * (8 + 4 * 501)
