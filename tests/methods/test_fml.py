"""FML against plain loops: the two losses, peers that only teach, and what goes on the wire."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods.mutual import small_model
from pfedlora_flwr.models.registry import build
from pfedlora_flwr.models.task import Task
from tests.plain import make, maker, samples, visit

method = maker({"method": "fml", "batch-size": 8})
LABELS = [0, 0, 3, 3, 3, 7, 7, 1]


def test_a_step_is_one_step_of_each_model_with_its_own_optimiser() -> None:
    fml, data = method(**{"lr": 0.1, "fml.alpha": 0.3, "fml.beta": 0.8}), samples(LABELS)
    model, twin, theta, small = (
        fml.private_init(1, 1),
        fml.private_init(1, 1),
        fml.state_init(2),
        build("cnn5", Task(10)),
    )
    small.load_state_dict(theta)
    made = visit(fml.experiment)
    upload = fml.local_update(model, theta, data, made)
    own, shared = twin(data.inputs), small(data.inputs)
    p, q = own.softmax(1), shared.softmax(1)
    local_loss = (
        0.3 * cross_entropy(own, data.labels)
        + 0.7 * (q.detach() * (q.detach().log() - p.log())).sum() / 8
    )
    small_loss = (
        0.8 * cross_entropy(shared, data.labels)
        + 0.2 * (p.detach() * (p.detach().log() - q.log())).sum() / 8
    )
    for mine, theirs, loss in (
        (twin, model.state_dict(), local_loss),
        (small, upload.tensors, small_loss),
    ):
        for (name, start), gradient in zip(
            mine.named_parameters(), torch.autograd.grad(loss, list(mine.parameters())), strict=True
        ):
            assert torch.allclose(theirs[name], start - 0.1 * gradient, atol=1e-6), name
    assert made.losses["model"] == pytest.approx((local_loss + small_loss).item(), rel=1e-5)


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
