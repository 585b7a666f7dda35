"""The controls: what `sharing=none` and `sharing=start` do to a run, of whatever method."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pfedlora_flwr.commands.dry_run import dry_run
from pfedlora_flwr.config import from_flat, located, run_config
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.server_state import is_standalone
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.methods.standalone import Standalone, train_locally
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs import begin
from pfedlora_flwr.runs.store import ClientStore
from pfedlora_flwr.training.loop import Samples, Visit
from tests.conftest import keys_in, run_locally
from tests.plain import ANY_MODEL, Plain, make, samples, visit

pytestmark = pytest.mark.slow

KEYS: dict[str, object] = keys_in(
    "clients=3 participation=0.67 rounds=3 batch-size=16 models=cnn5 dataset=synthetic:100 "
    "partition.kind=iid device=cpu"
)
SILENT_AT_FIRST = {"fd", "fedproto", "fedssa", "fedtgp", "fedorgp"}
"""Methods whose clients receive nothing before anyone has sent something."""


def over_clients(digests: Mapping[int, str]) -> str:
    return hashlib.sha256(
        "".join(f"{k}:{digests[k]}\n" for k in sorted(digests)).encode()
    ).hexdigest()


@pytest.mark.parametrize(
    "method",
    [
        *("pfedlora", "fedproto", "fedgh"),
        *(pytest.param(name, marks=pytest.mark.methods) for name in ("fedtgp", "pfedafm")),
    ],
)
def test_under_none_every_client_is_a_federation_of_one(tmp_path: Path, method: str) -> None:
    keys = KEYS | {"method": method}
    alone = [Plain(keys) for _ in range(3)]
    for client, plain in enumerate(alone):
        plain.train(3, alone=client)
    done = run_locally(tmp_path / "run", keys | {"sharing": "none"})
    assert done.result["shared_sha256"] == over_clients(
        {k: tensors_sha256(plain.state) for k, plain in enumerate(alone)}
    )
    models = {
        k: tensors_sha256(tensors_of(model)) for plain in alone for k, model in plain.models.items()
    }
    assert done.result["models_sha256"] == over_clients(models)
    visits = [row["admitted"] for row in done.rows("rounds.jsonl")[1:]]
    assert any(k in visits[0] and k not in visits[1] and k in visits[2] for k in range(3)), (
        "one missed a round and came back"
    )


def test_under_start_every_client_receives_the_first_state_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = []
    train = PFedLoRA.local_update

    def local_update(self: PFedLoRA, model: Any, tensors: Any, data: Any, visit: Any) -> Any:
        received.append(tensors_sha256(tensors))
        return train(self, model, tensors, data, visit)

    monkeypatch.setattr(PFedLoRA, "local_update", local_update)
    done = run_locally(tmp_path / "run", KEYS | {"sharing": "start"})
    first = tensors_sha256(Plain(KEYS).method.state_init(derive(0, "state")))
    assert received == [first] * 6
    assert done.result["shared_sha256"] == first
    sent = done.result["communication"]["parameters_up"]
    assert sent == 6 * 30_670, "uploads are admitted and counted"


def test_a_run_that_ends_between_two_states_resumes_to_the_same_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KEYS | {"sharing": "none"}
    undisturbed = run_locally(tmp_path / "undisturbed", keys)
    save, seen = ClientStore.save, list[str]()

    def full(self: ClientStore, version: int, *rest: Any, **more: Any) -> str:
        if self.folder.parent.name == "states" and version == 2:
            seen.append(self.folder.name)
            if len(seen) == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(self, version, *rest, **more)

    monkeypatch.setattr(ClientStore, "save", full)
    assert run_locally(tmp_path / "run", keys).stderr.startswith("No space left on device")
    server = tmp_path / "run" / "server"
    assert [(server / "states" / k / "round-000002.safetensors").exists() for k in seen] == [
        True,
        False,
    ]
    assert not (server / "round-000002.checkpoint").exists()
    monkeypatch.undo()
    done = run_locally(tmp_path / "run", keys | {"resume": True})
    for name in ("status", "shared_sha256", "models_sha256", "per_client"):
        assert done.result[name] == undisturbed.result[name], name

    lost = next(server.glob("states/*/round-000003.safetensors"))
    lost.unlink()
    with pytest.raises(UserError, match=rf"round 3, .* \({lost} is missing\): restore what"):
        run_locally(tmp_path / "run", keys | {"resume": True, "rounds": 5})
    monkeypatch.setattr(begin, "check_models", lambda *_: None)  # as on the host of a SuperLink
    more = run_locally(tmp_path / "run", keys | {"resume": True, "rounds": 5})
    assert (
        more.stderr
        == f"{lost}, the state of client {lost.parent.name} on the server, is missing or damaged;"
        " restore it"
    )
    run_locally(tmp_path / "run", keys | {"sharing": "mean", "overwrite": True})
    assert not (server / "states").exists()


def test_which_controls_are_standalone_is_decided_by_the_first_state() -> None:
    def of(sharing: str) -> set[str]:
        return {
            name
            for name in ANY_MODEL
            if is_standalone(Setup(from_flat(KEYS | {"method": name, "sharing": sharing})))
        }

    assert of("mean") == set()
    assert of("none") == {"standalone", "fd"}
    assert of("start") == {"standalone"} | SILENT_AT_FIRST
    own = "tests.federation.test_sharing:Patient"
    for sharing in ("none", "start"):
        e = from_flat(KEYS | {"method": own, "sharing": sharing})
        assert not is_standalone(Setup(e)), "it may train otherwise"


class Patient(Standalone):
    """It trains longer than Standalone does."""

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        train_locally(model, data, visit, epochs=5)
        return Upload({}, len(data))


@pytest.mark.parametrize("method", sorted(SILENT_AT_FIRST))
def test_a_control_that_is_standalone_by_construction_trains_the_same_model(method: str) -> None:
    data = samples([0, 0, 1, 1, 2, 3])

    def trained(name: str) -> str:
        one = make(from_flat(KEYS | {"method": name, "batch-size": 4, "local-epochs": 2}))
        model = one.private_init(0, 1)
        for round in (1, 2):
            first = one.download(one.state_init(1), 0, round)
            upload = one.local_update(
                model.train(), first, data, visit(one.experiment, round=round)
            )
        back = one.download(one.aggregate({0: upload}, one.state_init(1), 1), 0, 2)
        assert any(tensor.numel() for tensor in back.values()) == one.returns_own
        return tensors_sha256(tensors_of(model))

    assert trained(method) == trained("standalone")


@pytest.mark.parametrize(
    ("method", "sharing", "why"),
    [
        ("fd", "none", "a client receives nothing of what it uploads itself"),
        ("fedproto", "start", "the first state holds nothing to send"),
        ("standalone", "none", "a client receives nothing of what it uploads itself"),
    ],
)
def test_a_control_that_is_standalone_is_refused_in_one_line(
    tmp_path: Path, method: str, sharing: str, why: str
) -> None:
    text = (
        f"method {method} with sharing={sharing} is Standalone by construction: {why}; run"
        " method=standalone"
    )
    with pytest.raises(UserError, match=f"^{text}$"):
        run_locally(tmp_path / "run", KEYS | {"method": method, "sharing": sharing})
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_how_large_the_states_are(tmp_path: Path) -> None:
    out = Console(record=True, width=200, quiet=False)
    dry_run(located(run_config(KEYS | {"sharing": "none"}), tmp_path / "run"), out)
    dry_run(located(run_config(KEYS), tmp_path / "run"), out)
    none, mean = (line for line in out.export_text().splitlines() if line.startswith("disk"))
    assert none.endswith("for the clients' models and the server's 3 states")
    models = 3 * 3 * 4 * 670_058  # three versions of three clients
    assert mean == f"disk: at most {models / 1e6:.2f} MB for the clients' models"
    assert none.startswith(f"disk: at most {(models + 3 * 3 * 4 * 30_670) / 1e6:.2f} MB")
