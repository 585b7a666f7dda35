"""A run's folder made by version 0.2.0 is still read; only going on with it is refused."""

from __future__ import annotations

import csv
import tarfile
from pathlib import Path

import pytest

from tests.conftest import Call

ARCHIVE = Path(__file__).parent / "old" / "run-0.2.0.tar.gz"
"""`pfedlora run -o dataset=csv:table.csv -o clients=2 -o rounds=1 -o models=mlp5` of 0.2.0, its
table, and what its `predict` said."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run-0.2.0"


@pytest.mark.slow
def test_it_is_listed_and_reported(old: Path, pfedlora: Call) -> None:
    code, said, _ = pfedlora("list", ".")
    assert code == 0
    assert "completed" in said
    code, _, error = pfedlora("report", str(old))
    assert code == 0, error
    assert "0.2.0" in (old / "report" / "report.md").read_text()


@pytest.mark.slow
def test_it_predicts_what_it_predicted_then(old: Path, pfedlora: Call) -> None:
    code, said, error = pfedlora("predict", str(old), "--client", "0", "--csv", f"{old}/table.csv")
    assert code == 0, error
    now = list(csv.reader(said.splitlines()))
    then = list(csv.reader((old / "predicted.csv").read_text().splitlines()))
    assert len(now) == len(then) > 100
    for one, other in zip(now[1:], then[1:], strict=True):
        assert one[2:4] == other[2:4]
        assert float(one[4]) == pytest.approx(float(other[4]), abs=1e-5)


@pytest.mark.slow
def test_it_is_evaluated_and_exported(old: Path, pfedlora: Call) -> None:
    code, said, error = pfedlora("evaluate", str(old), "--client", "1", f"csv:{old}/table.csv")
    assert code == 0, error
    assert "accuracy" in said
    file = old / "model.safetensors"
    words = ("--client", "1", "--format", "safetensors", "--output", str(file))
    code, _, error = pfedlora("export", str(old), *words)
    assert code == 0, error
    assert file.is_file()


@pytest.mark.slow
def test_it_is_not_resumed(old: Path, pfedlora: Call) -> None:
    options = ("--resume", "-o", f"output={old}", "-o", "rounds=2")
    code, _, said = pfedlora("run", "--engine", "local", *options)
    assert code == 2
    assert "0.2.0" in said
    assert len(said.strip().splitlines()) == 1
