"""pFedLoRA+ with a summed prior, as a user has it: run, stopped and resumed, under masks, audited,
evaluated, asked, and exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models.kept import base_of, restore
from pfedlora_flwr.models.own import Whole
from pfedlora_flwr.models.summed import Summed
from pfedlora_flwr.ops.card import card
from pfedlora_flwr.ops.export import export
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.trained import load_trained
from tests.conftest import Lazily, needs, result_of, run_locally
from tests.models.bases import base
from tests.plain import Plain

timm = Lazily("timm")
pytestmark = [needs("timm"), pytest.mark.slow]
Call = Any


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("bases")
    names = ",".join(base(folder, name) for name in ("test_resnet", "test_efficientnet"))
    return {
        "method": "pfedlora_plus",
        "models": names,
        "train": "head",
        "representation": "pretrained-logits",
        "clients": 4,
        "partition.classes-per-client": 5,
        "dataset": "synthetic:200",
        "batch-size": 8,
        "rounds": 2,
        "adapter.hidden-dim": 6,
        "device": "cpu",
    }


@pytest.fixture(scope="module")
def run(keys: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = run_locally(
        tmp_path_factory.mktemp("runs") / "run", keys | {"audit.uploads": True, "rounds": 3}
    )
    assert done.code == 0, done.stderr
    return done.output


def hashes(output: Path) -> tuple[str, str]:
    result = result_of(output)
    return result["models_sha256"], result["shared_sha256"]


def test_a_run_is_the_plain_federation_and_a_resumed_one_is_the_same(
    keys: dict[str, object], run: Path, tmp_path: Path
) -> None:
    plain = Plain(keys)
    plain.train(3)
    state = RunDirectory(run).checkpoints.load()
    assert state is not None
    assert all(torch.equal(t, plain.state[name]) for name, t in state.tensors.items())
    begun = run_locally(tmp_path / "again", keys | {"rounds": 1})
    assert begun.code == 0, begun.stderr
    assert run_locally(tmp_path / "again", keys | {"resume": True, "rounds": 3}).code == 0
    assert hashes(tmp_path / "again") == hashes(run)
    stored = safetensors.torch.load_file(next((run / "clients" / "0").glob("*.safetensors")))
    assert sum(t.numel() for t in stored.values()) == 10 * 20 + 10 + 10 * 6 + 10, (
        "what a client can make again is not stored"
    )


@pytest.mark.parametrize("kind", ["safetensors", "onnx"])
def test_an_export_is_one_model_of_the_librarys_with_both_parts_in_its_head(
    run: Path, tmp_path: Path, kind: str
) -> None:
    trained = load_trained(run, 1)
    assert isinstance(trained.module, Summed)
    target = tmp_path / f"model.{kind}"
    assert export(trained, kind, target) < 1e-4
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    own = trained.logits(images)
    inputs = trained.samples(images)
    with torch.no_grad():
        seen = trained.module.eval()
        both = seen(inputs.batch(slice(None)))
    assert torch.allclose(own, both, atol=1e-5), "one layer, or head and shared part"
    assert not torch.allclose(own, seen.model(inputs.batch(slice(None))), atol=1e-3)
    assert "timm:test_efficientnet, read by its classifier" in card(trained, kind, "model", 0.0)


def test_evaluate_and_predict_use_both_parts(run: Path, pfedlora: Call) -> None:
    result = result_of(run)
    code, out, err = pfedlora("evaluate", str(run), "--all-clients", "--json")
    assert code == 0, err
    found = json.loads(out)
    mean = np.mean([client["accuracy"] for client in found])
    assert mean == pytest.approx(result["accuracy"]["final"], abs=1e-9)


def test_an_audit_says_that_rows_tell_classes(run: Path, pfedlora: Call) -> None:
    code, _, err = pfedlora("audit", str(run))
    assert code == 0, err
    told = json.loads((run / "audit.json").read_text())
    attacks, found = told["membership"], told["classes"]
    assert set(attacks["attacks"]) == {"loss, initial encoder", "fall, initial encoder"}, (
        "encoders are frozen: the client's own and others' are no more than what the server knows"
    )
    assert (attacks["bound"], attacks["bounds"]) == (None, {})
    assert sum("a frozen encoder stays the initial one" in note for note in told["notes"]) == 1
    assert found["upload"]["auc"] == 1.0
    assert found["layer"] == "up.weight, up.bias"


def test_masks_hide_whole_matrices_and_their_sum_is_the_mean(
    keys: dict[str, object], tmp_path: Path
) -> None:
    plain = keys | {"adapter.rows": "samples", "rounds": 1}
    secure = plain | {"secagg.enabled": True, "secagg.max-samples": 128}
    done = [run_locally(tmp_path / name, of) for name, of in (("a", plain), ("b", secure))]
    assert [d.code for d in done] == [0, 0], done[1].stderr
    states = [RunDirectory(d.output).checkpoints.load() for d in done]
    left, right = (state.tensors["up.weight"] for state in states if state is not None)
    assert bool(left.any(1).all()), "rows of all classes"
    assert torch.allclose(left, right, atol=1e-4)


def test_another_basis_under_a_stored_model_is_refused(run: Path) -> None:
    trained = load_trained(run, 0)
    module = trained.module
    assert isinstance(module, Summed)
    assert isinstance(module.model, Whole)
    with torch.no_grad():
        module.shared.down.weight.mul_(2)
    stored = {name: t for name, t in module.state_dict().items() if "down" not in name}
    before = base_of(load_trained(run, 0).module)
    module.base = ""
    with pytest.raises(UserError, match="was trained on the base"):
        restore("it", module, stored, before)
