"""The aggregation error of LoRA's factors in a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pfedlora_flwr.report import aggregation, tables
from pfedlora_flwr.report.load import load
from tests.report.made import make_run


def with_errors(folder: Path, method: str, seed: int, errors: list[float | None]) -> None:
    """A made run whose rounds have these aggregation errors."""
    models = {"models": "timm:test_vit:pretrained", "train": "lora"}
    values = [0.1, *(0.5 for _ in errors)]
    make_run(folder, values, [0.5] * 3, method=method, seed=seed, partition="made", **models)
    file = folder / "rounds.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row, error in zip(rows[1:], errors, strict=True):
        row["aggregation_error"] = error
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.slow
def test_a_report_has_what_averaging_missed(tmp_path: Path) -> None:
    with_errors(tmp_path / "i0", "fedit", 0, [0.1, None, 0.3])
    with_errors(tmp_path / "i1", "fedit", 1, [0.3, None, 0.5])
    with_errors(tmp_path / "s0", "fedsa_lora", 0, [None, None, None])
    make_run(tmp_path / "a0", [0.1, 0.5, 0.5, 0.5], 3, method="standalone", seed=0)
    study = load([tmp_path / name for name in ("i0", "i1", "s0", "a0")])
    table = next(t for t in tables.all_tables(study) if t.name == "aggregation_error")
    cells = [list(row.values())[1:] for row in table.rows]
    assert cells == [
        ["FedIT", "2", "0.3", "0.2 → 0.4", "0.5"],
        ["FedSA-LoRA", "1", "–", "–", "–"],
    ]
    assert "means nothing" in table.note


@pytest.mark.slow
def test_one_figure_shows_it_by_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: list[tuple[list[int], list[float]]] = []
    plot = Axes.plot

    def record(self: Axes, x: list[int], y: list[float], **options: object) -> object:
        drawn.append((x, y))
        return plot(self, x, y, **options)

    monkeypatch.setattr(Axes, "plot", record)
    with_errors(tmp_path / "i0", "fedit", 0, [0.1, None, 0.3])
    with_errors(tmp_path / "s0", "fedsa_lora", 0, [None, None, None])
    (picture,) = aggregation.pictures(load([tmp_path / "i0", tmp_path / "s0"]), tmp_path)
    assert picture.path.is_file()
    assert "of FedIT." in picture.caption
    assert drawn == [([1, 3], [0.1, 0.3])]
