"""A model of two, exported: one file that gives its logits, and a card that names both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors

from pfedlora_flwr.ops.export import export
from tests.models.bases import untrained


@pytest.mark.parametrize("name", ["fedmrl", "pfedmoe", "pfedafm"])
def test_both_models_are_exported_and_named(name: str, tmp_path: Path) -> None:
    trained = untrained(name)
    assert export(trained, "safetensors", tmp_path / "model") < 1e-5
    with safetensors.safe_open(tmp_path / "model", "pt") as stored:
        assert stored.metadata()["architecture"] == "cnn2 with a shared cnn5"
        found = {key.split(".")[0] for key in stored.keys()}  # noqa: SIM118 - it is no dict
        assert found >= {"local", "small"}
    card = (tmp_path / "model.md").read_text()
    assert "| architecture | cnn2 with a shared cnn5, " in card
    assert "by the names of this package's client model. Input" in card
    images = np.zeros((2, 32, 32, 3), dtype=np.uint8)
    assert trained.representations(images).shape == (2, 500)
