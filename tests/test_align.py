"""`pfedlora align`: whether what several models see means the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pfedlora_flwr.commands.align import agreement, places_in_class
from tests.models.bases import base

Call = Any


def test_places_in_a_class_are_counted_from_0() -> None:
    assert places_in_class(torch.tensor([1, 0, 1, 1, 0])).tolist() == [0, 0, 1, 2, 1]


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


def test_the_command_compares_the_models_of_a_run(
    pfedlora: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("timm")
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    one, two = (base(tmp_path, "test_resnet", seed) for seed in (0, 1))
    words = ("-o", f"models={one},{two},{one}", "-o", "dataset=synthetic:200", "--samples", "100")
    code, out, err = pfedlora("align", *words, "--json")
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
