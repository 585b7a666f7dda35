"""FedTGP: whole rounds against a slow loop, the margin by hand, and prototypes that keep their
gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from pfedlora_flwr.methods.fedtgp import PrototypeNet
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.training.flops import count_operations
from tests.methods import slow, slow_server
from tests.plain import maker

method = maker({"method": "fedtgp", "models": "cnn5", "batch-size": 8})
KEYS: dict[str, object] = {"method": "fedtgp", "seed": slow_server.SEED, "fedtgp.lambda": 2.0}
KEYS |= {"fedtgp.server-lr": 0.02, "fedtgp.server-epochs": 3, "fedtgp.server-batch": 4}


def net_of(state: Tensors) -> Tensor:
    """P̂ of all classes."""
    hidden = (state["embedding.weight"] @ state["hidden.weight"].T + state["hidden.bias"]).relu()
    return hidden @ state["output.weight"].T + state["output.bias"]


def distance(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).square().sum().sqrt()


WRONG = ("detached", "sum", "no margin", "least gap", "order")


def difference(wrong: str = "") -> float:
    def turn(kept: Tensors, received: Tensors, client: slow.Client) -> Tensors:
        return slow_server.towards(kept, received, client, mse_loss, wrong)

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
        turn, server, lambda state, client: {n: state[n] for n in ("classes", "means")}, **KEYS
    )


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


@pytest.mark.parametrize("batch", [0, 3])
def test_the_servers_operations_are_seen(batch: int) -> None:
    tgp = method(**{"fedtgp.server-epochs": 2, "fedtgp.server-batch": batch})
    state, uploads = tgp.state_init(1), {k: slow_server.a_report([k, 9], seed=k) for k in range(3)}
    with count_operations() as operations:
        tgp.aggregate(uploads, state, 3)
    layer = 2 * 10 * 500 * 500
    assert operations.total == (2 * 2 if batch else 2) * 2 * 3 * layer + 2 * layer, (
        "steps of two layers, and P̂ at the end"
    )


@pytest.mark.parametrize(("classes", "expected"), [(10, 506_000), (100, 551_000)])
def test_the_net_stays_on_the_server(classes: int, expected: int) -> None:
    tgp = method(classes)
    assert (
        sum(t.numel() for n, t in tgp.state_init(0).items() if n not in ("classes", "means"))
        == expected
    )
