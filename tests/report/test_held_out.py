"""The table and the figure of held-out clients, against numbers computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr.features.held_out import table as held_out
from pfedlora_flwr.report.load import Study, load
from tests.report.made import make_run

ACCURACIES: dict[str, dict[str, tuple[float, ...]]] = {
    "pfedlora": {"5": (0.50, 0.52, 0.54), "all": (0.90, 0.90, 0.90)},
    "fd": {"5": (0.40, 0.40), "all": (0.80, 0.90)},
}
"""By method and number of samples, of three and of two seeds; alone it is always 0.45."""


def mean(round: int, asked: str, accuracy: float) -> dict[str, Any]:
    samples = 40.0 if asked == "all" else float(asked)
    return {
        "round": round,
        "asked": asked,
        "clients": 2,
        "samples": samples,
        "accuracy": accuracy,
        "alone_accuracy": 0.45,
        "flops": 4_000_000,
        "alone_flops": 5_000_000,
    }


@pytest.fixture
def study(tmp_path: Path) -> Study:
    for method, of in ACCURACIES.items():
        for seed in range(len(of["5"])):
            folder = tmp_path / "runs" / f"{method}-{seed}"
            make_run(folder, [0.1, 0.9], [0.9, 0.9], method=method, seed=seed)
            file = folder / "result.json"
            means = [mean(0, "all", 0.0), *(mean(1, asked, of[asked][seed]) for asked in of)]
            told = {"held_out": {"clients": [2, 3], "visits": 10, "means": means}}
            file.write_text(json.dumps(json.loads(file.read_text()) | told))
    return load([tmp_path / "runs"])


def test_the_gain_is_paired_by_seed_at_each_number_of_samples(study: Study) -> None:
    t2 = 4.30265  # the 97.5 % quantile of Student's t with two degrees of freedom
    rows = {(row["method"], row["samples"]): row for row in held_out.table(study).rows}
    assert [*rows] == [("FD", "5"), ("FD", "all"), ("pFedLoRA", "5"), ("pFedLoRA", "all")]
    ours, half = rows["pFedLoRA", "5"], t2 * 2 / 3**0.5
    assert (ours["adapted"], ours["alone"]) == (f"52.00 ± {half:.2f}", "45.00 ± 0.00")
    assert ours["gain, points"] == f"+7.00 ± {half:.2f}"
    assert (ours["operations"], ours["alone: operations"]) == ("4 M", "5 M")
    assert rows["FD", "all"]["gain, points"] == "+35.00, +45.00"
    assert (rows["FD", "5"]["seeds"], rows["FD", "5"]["clients"]) == ("2", "2")
    for run in study.runs:
        run.result["held_out"]["clients"] = [1]
    assert {row["clients"] for row in held_out.table(study).rows} == {"client 1"}


@pytest.mark.slow
def test_the_figure_has_a_line_a_method_and_a_thin_one_alone(study: Study, tmp_path: Path) -> None:
    [picture] = held_out.figures(study, tmp_path)
    assert picture.path.name == "held_out.png"
    assert all(picture.path.with_suffix(suffix).exists() for suffix in (".png", ".svg", ".pdf"))
    assert "than by" not in picture.caption
    assert "FD, pFedLoRA" in picture.caption


def test_runs_that_hold_nobody_out_have_neither(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one", [0.1, 0.9], [0.9, 0.9])
    study = load([tmp_path / "runs"])
    assert not held_out.table(study).rows
    assert held_out.figures(study, tmp_path) == []
