"""A half frozen model of a user's: what of it is trained, stored and sent, and that its base is
checked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pfedlora_flwr.comparison.estimate import model_bytes
from pfedlora_flwr.config import from_flat, run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.model_cache import MODELS
from pfedlora_flwr.methods import registry as methods
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models import registry
from pfedlora_flwr.models.kept import base_of, kept, load_kept
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.ops.export import export
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import load_trained
from tests.conftest import Call, keys_in, run_locally
from tests.models import modules
from tests.plain import Plain

NAME = "tests.models.modules:HalfFrozen"
KEYS = keys_in(
    "method=lg_fedavg clients=2 partition.kind=iid batch-size=8 dataset=synthetic:60"
) | {"models": NAME}
KEPT = [
    *(f"module.trained.0.{name}" for name in ("weight", "bias")),
    *(f"module.trained.1.{name}" for name in ("weight", "bias", "running_mean", "running_var")),
    "module.trained.1.num_batches_tracked",
    *(f"last.{name}" for name in ("weight", "bias")),
]
TRAINED = 200 * 12 + 12 + 4 * 12 + 12 * 10 + 10
"""Floating-point numbers of what is kept."""


def whole(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors_of(module).items()}


def test_a_visit_changes_what_is_kept_and_nothing_of_the_base() -> None:
    plain = Plain(KEYS | {"weight-decay": 0.1})
    before = whole(plain.model(0))
    assert list(kept(plain.model(0))) == KEPT
    plain.train(2)
    after = tensors_of(plain.model(0))
    moved = [name for name in after if not torch.equal(after[name], before[name])]
    assert moved == KEPT


@pytest.mark.slow
def test_a_run_stores_and_resumes_what_is_kept_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pfedlora: Call
) -> None:
    monkeypatch.setattr(MODELS, "take", lambda *_: None)  # every visit reads the disk
    keys = KEYS | {"rounds": 1}
    run = tmp_path / "run"
    assert run_locally(run, keys).code == 0
    store = RunDirectory(run).client_store(1)
    stored = store.read(1)
    assert list(stored) == KEPT
    assert store.base(1).startswith("sha256:")
    assert sum(t.numel() for t in stored.values() if t.is_floating_point()) == TRAINED
    assert model_bytes(run_config(keys)) == 2 * (4 * TRAINED + 8)
    assert run_locally(run, keys | {"rounds": 2, "resume": True}).code == 0

    plain = Plain(KEYS | {"rounds": 2})
    plain.train(2)
    trained = load_trained(run, 1)
    expected = whole(plain.model(1))
    found = tensors_of(trained.module)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)

    code, told, error = pfedlora("evaluate", str(run), "--client", "1")
    assert code == 0, told + error

    assert export(trained, "safetensors", tmp_path / "model") < 1e-5
    modules.HalfFrozen(10).load_state_dict(load_file(tmp_path / "model"))
    assert f"| frozen base | `{store.base(2)}` |" in (tmp_path / "model.md").read_text()

    monkeypatch.setattr(modules.HalfFrozen, "base_seed", 1)
    with pytest.raises(UserError, match=r"was trained on the base sha256:\w{64}, and the"):
        load_trained(run, 1)
    done = run_locally(run, keys | {"rounds": 3, "resume": True})
    assert done.code == 1
    assert "its model of round 2 was trained on the base sha256:" in done.stderr


@pytest.mark.parametrize("name", ["fedavg", "fml", "fedkd", "fedmrl", "pfedmoe", "pfedafm"])
def test_methods_that_send_a_model_send_what_is_trained(name: str) -> None:
    plain = Plain(KEYS | {"method": name, "fedmrl.representation-dim": 12})
    plain.train(1)
    sent = {part.partition("/")[0] for part in plain.uploads[0].tensors}
    head = {name for name in KEPT if name.startswith("last.")}
    assert sent == set(KEPT) - (head if name in ("pfedmoe", "pfedafm") else set())
    if name == "fedavg":
        sizes = [t.numel() for t in plain.state.values() if t.is_floating_point()]
        assert sum(sizes) == TRAINED
    for model in plain.models.values():
        assert len({base_of(model), base_of(registry.build(NAME, Task(10)))}) == 1


def test_a_model_stored_whole_by_an_older_version_is_taken_up_whole() -> None:
    model = registry.build(NAME, Task(10))
    older = {name: tensor + 1 for name, tensor in whole(model).items()}
    load_kept(model, older)
    assert all(torch.equal(tensor, older[name]) for name, tensor in tensors_of(model).items())


def test_a_frozen_part_that_was_drawn_is_kept() -> None:
    model = registry.build("tests.models.modules:PartlyFrozen", Task(3, (9,)))
    assert list(kept(model)) == list(model.state_dict())
    assert base_of(model) == ""


def test_a_frozen_layer_may_have_two_names() -> None:
    model = registry.build("tests.models.modules:TwoNames", Task(3))
    assert set(kept(model)) == {"last.weight", "last.bias"}


def test_a_last_layer_that_is_not_trained_is_not_shared() -> None:
    for name in ("lg_fedavg", "fedgh", "fedre", "fedssa"):
        keys = {"method": name, "models": "tests.models.modules:FrozenHead"}
        with pytest.raises(UserError, match=f"method {name} shares last layers, and that of model"):
            methods.make(from_flat(keys), Task(3, (9,))).state_init(0)
    with pytest.raises(UserError, match="none of its parameters is trained"):
        registry.build("tests.models.modules:AllFrozen", Task(3, (9,)))
