"""LG-FedAvg: the last layer travels, everything before it stays."""

from __future__ import annotations

import torch

from tests.plain import Plain, make, maker, samples, visit

method = maker({"method": "lg_fedavg", "batch-size": 4})


def test_a_visit_is_local_sgd_from_the_received_last_layer() -> None:
    lg, data = method(), samples([0, 1, 2, 3] * 3)
    model, twin, received = lg.private_init(1, 1), lg.private_init(1, 1), lg.state_init(9)
    upload = lg.local_update(model, received, data, visit(lg.experiment))
    twin.fc3.load_state_dict(received)
    make(lg.experiment.replace(method="standalone")).local_update(
        twin, {}, data, visit(lg.experiment)
    )
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )
    assert {n: t.shape for n, t in upload.tensors.items()} == {"weight": (10, 500), "bias": (10,)}
    assert torch.equal(upload.tensors["weight"], model.fc3.weight)


def test_models_of_different_structure_share_it() -> None:
    plain = Plain(method="lg_fedavg", clients=5)
    plain.play([0, 3])
    plain.play([1])
    assert torch.equal(plain.uploads[1].tensors["weight"], plain.state["weight"])
    assert [plain.models[k].fc1.out_features for k in (0, 1, 3)] == [
        2000,
        2000,
        800,
    ], "CNN-1, CNN-2 and CNN-4"
