"""The notebook, from top to bottom: its cells' code in one namespace, as a kernel runs them."""

from __future__ import annotations

import json
import linecache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


def test_the_notebook_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    notebook = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text(encoding="utf-8"))
    space: dict[str, Any] = {"__name__": "__main__"}
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in codes)
    for number, cell in enumerate(codes):
        text, file = "".join(cell["source"]), f"<cell {number}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), space)
    assert space["run"].status == "completed"
    assert space["comparison"].table()["method"].tolist() == ["standalone", "fedproto", "pfedlora"]
    again, compared = space["run"].result, space["comparison"].runs()[-1].result
    assert again["models_sha256"] == compared["models_sha256"]
    for name in ("curves.png", "confusion.png", "client-0.safetensors", "client-0.safetensors.md"):
        assert (tmp_path / name).stat().st_size > 1000, name
    said = capsys.readouterr().out
    assert "round 5/5" in said
    assert "personalised model" in said
