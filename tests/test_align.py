"""`pfedlora align`: whether what several models see means the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfedlora_flwr.config import run_config
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.data.partition import places_in_class
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.launch.checks import of_method
from pfedlora_flwr.models.named import RANDOM_WEIGHTS, random_encoders
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.ops.align import agreement, align
from pfedlora_flwr.runs.directory import RunDirectory
from tests.models.bases import base

Call = Any


def test_places_in_a_class_are_counted_from_0() -> None:
    assert places_in_class(np.array([1, 0, 1, 1, 0])).tolist() == [0, 0, 1, 2, 1]


def test_frozen_encoders_with_random_weights_are_named() -> None:
    """The likeliest slip with pretrained models: nothing but the accuracy would tell."""
    assert random_encoders(
        map(ModelSpec, ("timm:test_vit", "timm:test_vit:pretrained", "cnn5"))
    ) == ["timm:test_vit"]
    keys = {"dataset": "digits", "models": "timm:test_vit,cnn5", "neck": "always"}
    told = f"warning: timm:test_vit is frozen (train=head), and {RANDOM_WEIGHTS}"
    assert of_method(Setup.of(run_config(keys | {"train": "head"})).method) == [told]
    ranks = {"models": "timm:test_vit", "train": "lora", "lora.rank": "4,8", "method": "lg_fedavg"}
    assert len(of_method(Setup.of(run_config(keys | ranks)).method)) == 1
    assert of_method(Setup.of(run_config(keys)).method) == []


def test_a_basis_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "basis.safetensors").write_text("irreplaceable")
    wanted = "exists; replace it with overwrite=true, or give another basis"
    with pytest.raises(UserError, match=wanted):
        align(run_config({"dataset": "digits"}), samples=100, basis=tmp_path / "basis.safetensors")


def test_agreement_by_hand() -> None:
    """Three classes on three axes. The second model sees the first's coordinates in another scale,
    which standardising undoes; the third in another order; the fourth has another width."""
    labels = torch.tensor([0, 1, 2] * 8)
    noise = torch.randn(24, 3, generator=torch.Generator().manual_seed(0)) / 10
    first = torch.eye(3)[labels] + noise
    turned, narrow = first[:, [1, 2, 0]], first[:, :2]
    accuracy, correlation = agreement([first, 5 * first - 3, turned, narrow], labels)
    assert accuracy[0] == [1, 1, 0, None]
    assert accuracy[1] == [1, 1, 0, None]
    assert accuracy[2] == [0, 0, 1, None]
    assert accuracy[3][3] is not None
    assert accuracy[3][:3] == [None] * 3
    assert correlation[0][1] == pytest.approx(1, abs=1e-4)
    assert correlation[0][2] == pytest.approx(-0.5, abs=0.1)


def test_a_class_without_a_mean_or_without_what_is_read_does_not_count() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2])
    accuracy, _ = agreement([torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1], [9, 9]])], labels)
    assert accuracy == [[1.0]]


@pytest.mark.slow
def test_the_command_compares_the_models_of_a_run(
    pfedlora: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("timm")
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    one, two = (base(tmp_path, "test_resnet", seed) for seed in (0, 1))
    words = ("-o", f"models={one},{two},{one}", "-o", "dataset=synthetic:200", "--samples", "100")
    # which clients share what does not matter: these weights bring their own normalisation
    code, out, err = pfedlora("align", *words, "-o", "clients=150", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["widths"] == [96, 96, 96]
    assert (found["samples"], found["classes"], found["chance"]) == (100, 10, 0.1)
    assert found["models"][0] == "timm:test_resnet:weights=test_resnet-0.safetensors (train=head)"
    assert found["accuracy"][0] == found["accuracy"][2]
    assert found["correlation"][0][2] == pytest.approx(1, abs=1e-5)
    assert abs(found["correlation"][0][1]) < 0.9
    code, out, _ = pfedlora("align", *words)
    assert code == 0
    assert "through a column's" in out
    code, _, err = pfedlora("align", "-o", "dataset=synthetic:200", "--samples", "19")
    assert (code, err) == (2, "error: --samples is 19; allowed: at least 20, two of each class\n")


@pytest.mark.slow
def test_the_command_writes_a_basis_that_a_run_takes(
    pfedlora: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("timm")
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    models = ",".join(base(tmp_path, name) for name in ("test_resnet", "test_efficientnet"))
    words = ["-o", f"models={models}", "-o", "train=head", "-o", "dataset=synthetic:400"]
    words += ["-o", "representation=pretrained-logits"]
    told = ("align", *words, "--samples", "40", "--basis", "in/public.safetensors")
    code, out, err = pfedlora(*told)
    assert code == 0, err
    assert "20 principal directions written" in out
    assert pfedlora(*told)[0] == 2, "it is there"
    words += ["-o", "method=pfedlora_plus", "-o", "adapter.basis=in/public.safetensors"]
    words += ["-o", "clients=2", "-o", "partition.kind=iid", "-o", "rounds=1"]
    run = ("run", "--engine", "local", *words, "-o", "output=run", "-o")
    code, out, err = pfedlora(*run, "adapter.hidden-dim=9")
    assert code == 0, out + err
    options = RunDirectory(tmp_path / "run").experiment().options
    assert options.adapter_basis == str(tmp_path / "in" / "public.safetensors")
    code, out, err = pfedlora(*run, "adapter.hidden-dim=21", "--overwrite")
    assert code == 2
    assert "adapter.hidden-dim is 21; allowed with adapter.basis=" in err
