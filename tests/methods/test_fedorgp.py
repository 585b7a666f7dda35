"""FedORGP: whole rounds against a slow loop, and angles: aligned with the own class, at right
angles to the others."""

from __future__ import annotations

import torch
from torch import Tensor

from pfedlora_flwr.methods.fedtgp import PrototypeNet
from pfedlora_flwr.methods.method import Tensors
from tests.conftest import keys_in
from tests.methods import slow, slow_server
from tests.methods.test_fedtgp import net_of
from tests.plain import maker

method = maker({"method": "fedorgp", "models": "cnn5", "batch-size": 8})
KEYS: dict[str, object] = keys_in("fedorgp.lambda=2.0 fedorgp.server-lambda=0.7 fedorgp.gamma=1.5")
KEYS |= keys_in(
    "method=fedorgp fedorgp.server-lr=0.3 fedorgp.server-epochs=3 fedorgp.server-batch=4"
) | {"seed": slow_server.SEED}


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / (a.square().sum().sqrt() * b.square().sum().sqrt())


WRONG = ("detached", "own too", "signed", "swapped")


def difference(wrong: str = "") -> float:
    def turn(kept: Tensors, received: Tensors, client: slow.Client) -> Tensors:
        return slow_server.towards(kept, received, client, lambda a, b: 1 - cosine(a, b), wrong)

    def server(
        sent: dict[int, Tensors], counts: dict[int, int], state: Tensors, round: int
    ) -> Tensors:
        reports = slow_server.rows(sent)
        new = {
            name: state[name].clone().requires_grad_() for name in PrototypeNet(1, 1).state_dict()
        }
        for index in slow_server.batches(len(reports), 4, 3, "prototypes", round):
            prototypes = net_of(new)
            own = [cosine(reports[i][1], prototypes[reports[i][0]]) for i in index]
            other = [
                cosine(reports[i][1], prototypes[j])
                for i in index
                for j in range(10)
                if j != reports[i][0] or wrong == "own too"
            ]
            d = torch.stack([c if wrong == "signed" else c.abs() for c in other]).mean()
            weights = (1.5, 0.7) if wrong == "swapped" else (0.7, 1.5)
            slow_server.step(
                list(new.values()), weights[0] * (1 - torch.stack(own).mean()) + weights[1] * d, 0.3
            )
        known = sorted({int(c) for c in state["classes"]} | {c for c, _ in reports})
        new = {name: t.detach() for name, t in new.items()}
        return new | {"classes": torch.tensor(known).double(), "means": net_of(new)[known]}

    return slow.largest_difference(
        turn, server, lambda state, client: {n: state[n] for n in ("classes", "means")}, **KEYS
    )


def test_vectors_of_zeros_have_finite_gradients() -> None:
    orgp = method()
    prototypes, zeros = torch.rand(10, 500, requires_grad=True), torch.zeros(2, 500)
    orgp.server_loss(zeros, torch.tensor([0, 1]))(
        zeros, torch.tensor([0, 1]), prototypes
    ).backward()
    representation = torch.zeros(2, 500, requires_grad=True)
    orgp.pull(representation, prototypes.detach()[:2]).sum().backward()
    assert torch.isfinite(prototypes.grad).all()
    assert torch.isfinite(representation.grad).all()
