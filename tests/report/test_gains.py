"""The table and the picture of what sharing gives, against numbers computed by hand."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfedlora_flwr.comparison.plan import Candidate, Cell, Plan
from pfedlora_flwr.comparison.spec import Comparison
from pfedlora_flwr.report import gain_figure, style, tables
from pfedlora_flwr.report.gains import gains
from pfedlora_flwr.report.load import Study, load
from pfedlora_flwr.report.opening import conclusion
from tests.report.made import make_run

METHODS = ("standalone", "fd", "pfedlora")
MEAN = {"standalone": (0.80, 0.82, 0.84), "fd": (0.83, 0.83, 0.83), "pfedlora": (0.91, 0.92, 0.93)}
WITHOUT, FIRST = (f"with sharing − {c}, points" for c in ("without sharing", "first state only"))
NONE, START = (0.88, 0.91, 0.91), (0.85, 0.86)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Three methods with their controls: three seeds, of `start` two. What is Standalone by
    construction is not there."""
    file = tmp_path / "made.yaml"
    file.write_text(
        f"methods: [{', '.join(METHODS)}]\nseeds: [0, 1, 2]\nbase: {{clients: 2, rounds: 1,"
        " partition: {kind: iid}}\naxes: {sharing: [mean, none, start], lr: [0.1]}\n"
    )
    folder = tmp_path / "runs"
    Comparison.load(file).plan().write(folder)
    for sharing, of in (
        ("mean", MEAN),
        ("none", {"pfedlora": NONE}),
        ("start", {"pfedlora": START}),
    ):
        for method, accuracies in of.items():
            for seed, accuracy in enumerate(accuracies):
                place = folder / f"sharing-{sharing}_lr-0.1" / method / f"seed-{seed}"
                make_run(place, accuracy, 2, method=method, seed=seed, sharing=sharing, lr=0.1)
    return load([folder])


@pytest.mark.slow
def test_gains_are_paired_by_seed_and_have_an_interval_from_three_seeds_on(study: Study) -> None:
    t2 = 4.30265  # the 97.5 % quantile of Student's t with two degrees of freedom
    fd, ours = gains(study).rows
    assert ours == {
        "scenario": "lr=0.1",
        "method": "pFedLoRA",
        "seeds": "3",
        # 3, 1 and 2 points: their standard deviation is 1
        WITHOUT: f"+2.00 ± {t2 * 1 / math.sqrt(3):.2f}",
        FIRST: "+6.00, +6.00 (2 seeds)",
    }
    assert fd == {
        "scenario": "lr=0.1",
        "method": "FD",
        "seeds": "3",
        # 3, 1 and −1 points beside Standalone
        WITHOUT: f"+1.00 ± {t2 * 2 / math.sqrt(3):.2f} (= Standalone)",
        FIRST: f"+1.00 ± {t2 * 2 / math.sqrt(3):.2f} (= Standalone)",
    }
    by_score = gains(replace(study, score="balanced-accuracy")).rows[1]  # 0.9 of the accuracy
    assert by_score[WITHOUT] == f"+1.80 ± {0.9 * t2 * 1 / math.sqrt(3):.2f}"
    assert gains(study).csv().splitlines()[0].split(",")[:3] == ["scenario", "method", "seeds"]


@pytest.mark.slow
def test_the_other_tables_say_what_is_standalone_and_count_no_communication_of_controls(
    study: Study,
) -> None:
    cells = {row["method"]: list(row.values())[1:] for row in tables.accuracy(study).rows}
    assert cells["Standalone"][1:3] == ["= Standalone"] * 2
    assert cells["FD"][1:] == ["= Standalone", "= Standalone", "240 B", "2 k", "1"], "and its cost"
    assert cells["pFedLoRA"][1] == "90.00 ± 4.30"
    assert not [row for row in tables.missing(study).rows if row["method"] != "pFedLoRA"], (
        "only the third seed of pFedLoRA's start"
    )
    against = {
        row["scenario"]: row["− Standalone, points"]
        for row in tables.accuracies(study).rows
        if row["method"] == "pFedLoRA"
    }
    assert against["without sharing, lr=0.1"].startswith("+8.00"), (
        "beside the one Standalone there is"
    )
    sent = {
        row["scenario"]: row["whole run: parameters up"]
        for row in tables.costs(study).rows
        if row["method"] == "pFedLoRA"
    }
    assert list(sent.values()) == ["20", "–", "–"]
    said = conclusion(study)
    assert said.startswith("With sharing. Helps: pFedLoRA +10.00 points of accuracy"), (
        "one scenario: controls are compared in a table of their own"
    )
    ups = [
        line["parameters_up"]
        for line in csv.DictReader(tables.runs_csv(study).splitlines())
        if line["method"] == "pfedlora"
    ]
    assert ups == ["20"] * 3 + [""] * 5


@pytest.mark.slow
def test_the_picture_shows_the_differences_of_the_table(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    save = style.save

    def first(figure: Any, folder: Path, name: str) -> Path:
        drawn.append(figure)
        return save(figure, folder, name) if drawn[1:] else folder / name

    monkeypatch.setattr(style, "save", first)
    _, picture = gain_figure.figures(study, tmp_path)
    assert picture.path.stat().st_size > 0
    [axis] = drawn[1].axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["FD", "pFedLoRA"]
    means = [(bar.lines[0].get_xdata()[0], bar.lines[0].get_ydata()[0]) for bar in axis.containers]
    assert means == pytest.approx(np.array([(1, -0.16), (1, 0.16), (2, 0.84)])), (
        "FD beside Standalone twice, ours beside none"
    )
    half = 4.30265 * 1 / math.sqrt(3)
    left, right = axis.containers[2].lines[2][0].get_segments()[0][:, 0]
    assert (left, right) == pytest.approx((2 - half, 2 + half), abs=1e-3)
    seeds = axis.lines[-1]  # two seeds of start: a point each
    assert sorted(seeds.get_xdata()) == pytest.approx([6, 6])


@pytest.mark.slow
def test_the_second_picture_shows_each_method_and_its_controls_beside_standalone(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        style, "save", lambda figure, folder, name: drawn.append(figure) or folder / name
    )
    gain_figure.figures(study, tmp_path)
    [axis] = drawn[0].axes
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == [
        f"{kind} − Standalone" for kind in ("with sharing", "without sharing", "first state only")
    ]
    means = [
        (bar.lines[0].get_xdata()[0], round(bar.lines[0].get_ydata()[0])) for bar in axis.containers
    ]
    assert means == pytest.approx(np.array([(1, 0), (0, 0), (0, 0), (10, 1), (8, 1)])), (
        "FD, whose controls are Standalone; then ours"
    )
    assert sorted(axis.lines[-1].get_xdata()) == pytest.approx([4, 5]), (
        "two seeds of start: 85 and 86 beside 80 and 82"
    )


def test_a_control_that_was_tuned_otherwise_is_none(tmp_path: Path) -> None:
    """A plan of an earlier version, in which FD's rate was tuned and Standalone's was not."""
    seeds = (0, 1, 2)

    def cell(method: str, sharing: str, *rates: float) -> Cell:
        runs = {rate: {s: f"fd-{rate}/seed-{s}" for s in seeds} for rate in rates}
        of = [Candidate({"lr": rate}, runs[rate], 1) for rate in rates]
        alone = [Candidate({}, {s: f"alone/seed-{s}" for s in seeds}, 1)] if not rates else []
        found = () if sharing == "none" else (*of, *alone)
        return Cell({"sharing": sharing}, method, found)

    cells = (
        cell("standalone", "mean"),
        cell("fd", "mean", 0.01, 0.1),
        cell("standalone", "none"),
        cell("fd", "none"),
    )
    Plan("made", seeds, 0, cells).write(tmp_path)
    for seed in seeds:
        for name, method, accuracy, keys in (
            ("alone", "standalone", 0.3, {}),
            ("fd-0.01", "fd", 0.3, {"lr": 0.01}),
            ("fd-0.1", "fd", 0.5, {"lr": 0.1}),
        ):
            make_run(
                tmp_path / name / f"seed-{seed}", accuracy, 2, method=method, seed=seed, **keys
            )
    [fd] = gains(load([tmp_path])).rows
    assert fd[WITHOUT] == "–"


def test_one_method_in_several_scenarios_is_one_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row for each scenario of which a control has run; nothing stands for the control that no
    scenario has."""
    drawn: list[Any] = []
    monkeypatch.setattr(
        style, "save", lambda figure, folder, name: drawn.append(figure) or folder / name
    )
    for lr, sharings in ((0.1, ("mean", "none")), (0.2, ("mean", "none")), (0.3, ("mean",))):
        for sharing in sharings:
            make_run(tmp_path / f"{lr}{sharing}", 0.5, method="pfedlora", sharing=sharing, lr=lr)
    gain_figure.figures(load([tmp_path]), tmp_path)
    [axis] = drawn[0].axes
    assert (axis.get_title(), [label.get_text() for label in axis.get_yticklabels()]) == (
        "pFedLoRA",
        ["lr=0.1", "lr=0.2"],
    )
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == [WITHOUT[:-8]]


def test_a_comparison_without_controls_has_no_such_table(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 0.5, method="pfedlora")
    assert not gains(load([tmp_path])).rows
    assert not gain_figure.figures(load([tmp_path]), tmp_path)


def test_what_is_of_fewer_seeds_than_its_row_says_so(tmp_path: Path) -> None:
    """55.60 − 50.50 is not the difference of the common seeds: 1, 2 and 1.5 points."""
    for method, sharing, accuracies in (
        ("pfedlora", "mean", (0.51, 0.52, 0.53, 0.61, 0.61)),
        ("pfedlora", "none", (0.50, 0.50, 0.515)),
        ("standalone", "mean", (0.50, 0.50, 0.515)),
    ):
        for seed, accuracy in enumerate(accuracies):
            make_run(
                tmp_path / f"{method}-{sharing}-{seed}",
                accuracy,
                method=method,
                seed=seed,
                sharing=sharing,
            )
    study = load([tmp_path])
    [row] = gains(study).rows
    assert (row["seeds"], row[WITHOUT]) == ("5", "+1.50 ± 1.24 (3 seeds)")
    against = [line["− Standalone, points"] for line in tables.accuracies(study).rows]
    assert against == ["–", "+1.50 ± 1.24 (3 seeds)", "+0.00 ± 0.00"]


def test_runs_without_a_plan_are_compared_too(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 0.5, method="pfedlora")
    make_run(tmp_path / "b", 0.4, method="pfedlora", sharing="none")
    [row] = gains(load([tmp_path])).rows
    assert (row["scenario"], row[WITHOUT], row[FIRST]) == (
        "all runs",
        "+10.00",
        "–",
    )
