"""FedTGP: whole rounds against a slow loop, the margin by hand, and prototypes that keep their
gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods.fedtgp import FedTGP, PrototypeNet
from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from pfedlora_flwr.training.flops import count_operations
from tests.methods import obvious, slow, slow_server
from tests.plain import make, samples, visit

KEYS: dict[str, object] = {"method": "fedtgp", "seed": slow_server.SEED, "fedtgp.lambda": 2.0}
KEYS |= {"fedtgp.server-lr": 0.02, "fedtgp.server-epochs": 3, "fedtgp.server-batch": 4}


def method(classes: int = 10, **keys: object) -> FedTGP:
    made = make(from_flat({"method": "fedtgp", "models": "cnn5", "batch-size": 8, **keys}), classes)
    assert isinstance(made, FedTGP)
    return made


def a_report(classes: list[int], seed: int = 0) -> Upload:
    random = torch.Generator().manual_seed(seed)
    return Upload(
        {
            "classes": torch.tensor(classes),
            "means": torch.rand(len(classes), 500, generator=random),
        },
        5,
    )


def net_of(state: Tensors) -> Tensor:
    """P̂ of all classes."""
    hidden = (state["embedding.weight"] @ state["hidden.weight"].T + state["hidden.bias"]).relu()
    return hidden @ state["output.weight"].T + state["output.bias"]


def distance(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).square().sum().sqrt()


def largest_difference(wrong: str = "") -> float:
    def turn(kept: Tensors, received: Tensors, client: slow.Client) -> Tensors:
        known = dict(zip(received["classes"].int().tolist(), received["means"], strict=True))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            total = slow_server.own_loss(kept, x, y)
            for r, c in zip(slow.extract(kept, x), y.tolist(), strict=True):
                if c in known:
                    of = r.detach() if wrong == "detached" else r
                    total = total + 2.0 * mse_loss(of, known[c]) / (1 if wrong == "sum" else len(y))
            return total

        slow_server.descend(kept, client, loss)
        return slow_server.report(kept, client)

    def server(
        sent: dict[int, Tensors], counts: dict[int, int], state: Tensors, round: int
    ) -> Tensors:
        reports = slow_server.rows(sent)
        centres = {
            c: torch.stack([row for y, row in reports if y == c]).mean(0) for c, _ in reports
        }
        gaps = [
            min(float(distance(p, q)) for d, q in centres.items() if d != c)
            for c, p in centres.items()
        ]
        margin = min(min(gaps) if wrong == "least gap" else max(gaps), 100.0)
        new = {
            name: state[name].clone().requires_grad_() for name in PrototypeNet(1, 1).state_dict()
        }
        for index in slow_server.batches(
            len(reports), 4, 3, "other" if wrong == "order" else "prototypes", round
        ):
            prototypes, loss = net_of(new), torch.zeros(())
            for y, row in (reports[i] for i in index):
                apart = [
                    distance(row, prototypes[j]) + margin * (j == y) * (wrong != "no margin")
                    for j in range(10)
                ]
                loss = loss + (apart[y] + torch.stack([-d for d in apart]).logsumexp(0)) / len(
                    index
                )
            slow_server.step(list(new.values()), loss, 0.02)
        known = sorted({int(c) for c in state["classes"]} | set(centres))
        new = {name: t.detach() for name, t in new.items()}
        return new | {"classes": torch.tensor(known).double(), "means": net_of(new)[known]}

    return slow.largest_difference(
        turn, server, lambda state: {n: state[n] for n in ("classes", "means")}, **KEYS
    )


@pytest.mark.slow
def test_two_rounds_are_those_of_a_slow_loop() -> None:
    assert largest_difference() < 1e-4


@pytest.mark.methods
@pytest.mark.parametrize("wrong", ["detached", "sum", "no margin", "least gap", "order"])
def test_a_wrong_loop_is_noticed(wrong: str) -> None:
    assert largest_difference(wrong) > 1e-3


def test_margin_is_the_largest_distance_to_the_nearest_other_class() -> None:
    tgp = method(**{"fedtgp.margin-threshold": 40.0})
    means = torch.zeros(4, 500)
    means[:, 0] = torch.tensor([0.0, 2.0, 7.0, 10.0])  # class 1's two reports have their mean at 1
    labels = torch.tensor([1, 1, 4, 9])
    assert tgp.margin(means, labels) == 6.0, "nearest others: 6, 3 and 3 away"
    assert tgp.margin(10 * means, labels) == 40.0
    assert tgp.margin(means[:2], labels[:2]) == 0.0, "no other class"


def test_a_report_on_its_prototype_has_a_finite_gradient() -> None:
    tgp = method()
    prototypes = torch.rand(10, 500, requires_grad=True)
    loss = tgp.server_loss(prototypes.detach()[:2], torch.tensor([0, 1]))
    loss(prototypes.detach()[:2], torch.tensor([0, 1]), prototypes).backward()
    assert torch.isfinite(prototypes.grad).all()


def test_server_loss_is_cross_entropy_of_distances_with_a_margin() -> None:
    tgp, upload = method(), a_report([0, 3, 4])
    p, y = upload.tensors["means"], upload.tensors["classes"]
    prototypes = torch.rand(10, 500)
    margin = max(min(math.dist(p[i], p[j]) for j in range(3) if j != i) for i in range(3))
    apart = np.array(
        [
            [math.dist(row, q) + margin * (j == c) for j, q in enumerate(prototypes)]
            for row, c in zip(p, y, strict=True)
        ]
    )
    assert float(tgp.server_loss(p, y)(p, y, prototypes)) == pytest.approx(
        obvious.cross_entropy(-apart, y.tolist()), rel=1e-5
    )


def test_the_server_learns_and_sends_reported_classes_alone() -> None:
    tgp = method(**{"fedtgp.server-epochs": 20})
    uploads = {0: a_report([1, 4]), 3: a_report([4, 8], seed=1)}
    p, y = (torch.cat([u.tensors[name] for u in uploads.values()]) for name in ("means", "classes"))
    loss, state, losses = tgp.server_loss(p, y), tgp.state_init(1), []
    assert len(tgp.download(state, 0, 1)["classes"]) == 0
    for round in range(1, 4):
        losses.append(float(loss(p, y, net_of(state))))
        state = tgp.aggregate(uploads, state, round)
    assert losses[0] > losses[1] > losses[2]
    assert tgp.download(state, 0, 4)["classes"].tolist() == [1, 4, 8]
    assert torch.allclose(tgp.download(state, 0, 4)["means"], net_of(state)[[1, 4, 8]], atol=1e-5)
    later = tgp.download(tgp.aggregate({5: a_report([0])}, state, 4), 0, 5)
    assert later["classes"].tolist() == [
        0,
        1,
        4,
        8,
    ], "a class that is not reported in a round stays known"
    assert torch.isfinite(later["means"]).all()
    assert not torch.equal(later["means"][1:], tgp.download(state, 0, 4)["means"]), (
        "and goes on moving"
    )


@pytest.mark.parametrize("batch", [0, 3])
def test_aggregate_is_pure_and_its_operations_are_seen(batch: int) -> None:
    tgp = method(**{"fedtgp.server-epochs": 2, "fedtgp.server-batch": batch})
    state, uploads = tgp.state_init(1), {k: a_report([k, 9], seed=k) for k in range(3)}
    kept = {name: t.clone() for name, t in state.items()}
    torch.manual_seed(1)
    drawn = torch.get_rng_state()
    with count_operations() as operations:
        first = tgp.aggregate(uploads, state, 3)
    assert torch.equal(torch.get_rng_state(), drawn), "nothing is drawn from the global generator"
    layer = 2 * 10 * 500 * 500
    assert operations.total == (2 * 2 if batch else 2) * 2 * 3 * layer + 2 * layer, (
        "steps of two layers, and P̂ at the end"
    )
    torch.rand(7)
    again = tgp.aggregate(uploads, state, 3)
    assert all(
        torch.equal(first[n], again[n]) and torch.equal(state[n], kept[n])
        for n in state
        if n not in ("classes", "means")
    )
    assert torch.equal(first["means"], again["means"])
    assert not any(t.requires_grad for t in first.values())


def test_nothing_received_is_standalone_to_the_bit() -> None:
    tgp, data = method(), samples([0, 3, 7] * 3)
    alone = make(tgp.experiment.replace(method="standalone"))
    one, two = tgp.private_init(0, 1), alone.private_init(0, 1)
    tgp.local_update(one, tgp.download(tgp.state_init(0), 0, 1), data, visit(tgp.experiment))
    alone.local_update(two, {}, data, visit(tgp.experiment))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_a_last_batch_of_one_and_one_class_alone() -> None:
    tgp = method(**{"batch-size": 4})
    state = tgp.aggregate({0: a_report([2])}, tgp.state_init(1), 1)
    upload = tgp.local_update(
        tgp.private_init(0, 1), tgp.download(state, 0, 2), samples([2] * 5), visit(tgp.experiment)
    )
    assert upload.tensors["classes"].tolist() == [2]
    assert all(torch.isfinite(t).all() for t in tgp.aggregate({0: upload}, state, 2).values())


def test_nearest_prototype_is_another_predictor() -> None:
    tgp, data = method(), samples([0] * 20)
    model = tgp.private_init(0, 1)
    assert tgp.other_predictors(model, tgp.download(tgp.state_init(0), 0, 1)) == {}
    rows = model.encode(data.inputs).detach()
    # near some images each
    received = {"classes": torch.tensor([1, 4, 8]), "means": rows[[3, 7, 11]]}
    nearest = [
        min((math.dist(row, p), c) for c, p in zip([1, 4, 8], received["means"], strict=True))[1]
        for row in rows
    ]
    assert len(set(nearest)) == 3
    assert (
        tgp.other_predictors(model, received)["prototype"](data.inputs).argmax(1).tolist()
        == nearest
    )


def test_a_client_that_misses_rounds_keeps_its_predictor() -> None:
    slow.assert_a_missed_round_changes_nothing(**KEYS)


@pytest.mark.parametrize(("change", "word"), slow.NO_REPORTS)
def test_refuses_what_is_no_report(change: dict[str, Tensor], word: str) -> None:
    tgp = method()
    good, state = {"classes": torch.tensor([1, 3]), "means": torch.zeros(2, 500)}, tgp.state_init(0)
    tgp.check(Upload(good, 5), state, 0)
    with pytest.raises(Refused, match=word):
        tgp.check(Upload(good | change, 5), state, 0)
    assert tgp.largest_upload(state) == 10 * (8 + 4 * 500)


@pytest.mark.parametrize(("classes", "expected"), [(10, 506_000), (100, 551_000)])
def test_the_net_stays_on_the_server(classes: int, expected: int) -> None:
    tgp = method(classes)
    assert (
        sum(t.numel() for n, t in tgp.state_init(0).items() if n not in ("classes", "means"))
        == expected
    )
