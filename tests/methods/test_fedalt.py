"""FedALT: who alone is Standalone, and what of whom a client receives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods.method import Refused, Upload
from pfedlora_flwr.models.kept import kept
from pfedlora_flwr.ops.export import export
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.runs.trained import load_trained
from tests.conftest import needs, run_locally
from tests.methods.test_fedlora import DATA, adapted, method, model, uploads
from tests.plain import visit

__all__ = ["model"]
pytestmark = [needs("timm", "peft"), pytest.mark.slow]


@pytest.mark.parametrize("head", ["private", "shared"])
def test_alone_it_is_standalone_to_the_bit(head: str, model: str, tmp_path: Path) -> None:
    keys = {"optimizer": "adamw", "lora.dropout": 0.2}
    ours = method("fedalt", model, **keys, **{"lora.head": head})
    alone = method("standalone", model, **keys)
    state, one, two = ours.state_init(9), ours.private_init(1, 1), alone.private_init(1, 1)
    assert ours.download(state, 1, 1) == {}
    for round in (1, 2, 3):
        with seeded(round):  # dropout draws
            sent = ours.local_update(one.train(), {}, DATA, visit(ours.experiment, 1, round))
        with seeded(round):
            alone.local_update(two.train(), {}, DATA, visit(alone.experiment, 1, round))
        state = ours.aggregate({1: sent}, state, round)
        received = ours.download(state, 1, round + 1)
        assert all(torch.equal(t, kept(one)[name]) for name, t in received.items())
        assert bool(received) == (head == "shared")  # its own head is the mean of all heads
    assert all(torch.equal(kept(one)[name], tensor) for name, tensor in kept(two).items())
    said = adapted(model) | {"method": "fedalt", "lora.head": head, "partition.kind": "iid"}
    with pytest.raises(UserError, match="sharing=none is Standalone by construction"):
        run_locally(tmp_path / "run", said | {"dataset": "synthetic:90", "sharing": "none"})


def test_a_client_receives_the_mean_of_the_others_last_uploads(model: str) -> None:
    of = method("fedalt", model)
    first, second = uploads(of, seed=1), uploads(of, seed=2)
    state = of.aggregate(first, of.state_init(3), 1)
    state = of.aggregate({2: second[2]}, state, 2)  # 0 and 1 miss the round
    last = {0: first[0], 1: first[1], 2: second[2]}
    for client in (0, 1, 2, 7):
        received = of.download(state, client, 3)
        of_others = [one for k, one in last.items() if k != client]
        total = sum(one.samples for one in of_others)
        assert len(received) == len(first[0].tensors)
        for name in first[0].tensors:
            wanted = sum(one.samples * one.tensors[name].double() for one in of_others) / total
            got = received[name.replace(".default.", ".rest.")]
            torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=1e-7)
    assert of.aggregation_error(last, state, state) is None
    of.check(first[0], state, 0)
    assert of.largest_upload(state) == sum(4 * t.numel() for t in first[0].tensors.values())
    with pytest.raises(Refused):
        of.check(Upload(of.download(state, 0, 3), 7), state, 0)


def test_a_stored_client_becomes_a_program_and_no_plain_weights(model: str, tmp_path: Path) -> None:
    keys = {"method": "fedalt", "partition.kind": "iid", "dataset": "synthetic:90", "rounds": 2}
    done = run_locally(tmp_path / "run", adapted(model) | keys | {"batch-size": 16})
    assert done.code == 0, done.stderr
    trained = load_trained(tmp_path / "run", 0)
    assert export(trained, "torch-export", tmp_path / "one.pt2") < 1e-4
    with pytest.raises(UserError, match="formats that hold it: onnx, torch-export"):
        export(trained, "safetensors", tmp_path / "one.safetensors")
