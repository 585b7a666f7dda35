"""The notebook: its outputs are of this version and of these cells, and it runs in a kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

import pfedlora_flwr
from pfedlora_flwr import Comparison, Run
from scripts.notebook import FILE, executed, made_by


def codes(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shapes(notebook: Any) -> list[list[str]]:
    """What each cell shows, by kind: of a stream its name."""
    return [
        [" ".join(sorted(output.get("data", {}))) or output["name"] for output in cell["outputs"]]
        for cell in codes(notebook)
    ]


def test_the_outputs_in_the_notebook_are_of_this_version_and_of_its_cells() -> None:
    notebook = nbformat.read(FILE, 4)
    assert notebook["metadata"]["pfedlora_flwr"] == made_by(notebook), "run `make notebook`"
    assert all(shapes(notebook)[1:])
    assert sum("image/png" in kind for kinds in shapes(notebook) for kind in kinds) >= 2
    assert not re.search(r"/(tmp|home|root)/", FILE.read_text(encoding="utf-8")), "a machine's path"


@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel_and_shows_one_line_for_what_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"rounds": 2, "dataset": "synthetic:200", "models": "cnn5"}
    found = executed(tmp_path, few)
    assert shapes(found) == shapes(nbformat.read(FILE, 4))
    lines = [output for cell in codes(found) for output in cell["outputs"] if "data" in output]
    told = [output["data"]["text/plain"] for output in lines]
    assert [line for line in told if line.startswith("round 2/2")]
    assert not [line for line in told if line.startswith("round 1/2")]
    assert [line for line in told if line.startswith("9 of 9: ")]
    monkeypatch.chdir(tmp_path)
    run = pfedlora_flwr.load("runs/notebook", Run)
    comparison = pfedlora_flwr.load("runs/three-methods", Comparison)
    first = next(r for r in comparison.runs() if r.config["method"] == "pfedlora")
    assert run.result["models_sha256"] == first.result["models_sha256"]
    for name in ("confusion.png", "sites.png", "client-0.safetensors", "client-0.safetensors.md"):
        assert (tmp_path / name).stat().st_size > 1000, name
