"""A whole report: its files, its page, and its figures' data."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import load_digits

from pfedlora_flwr.keys import UserError
from pfedlora_flwr.report import data_figures, figures
from pfedlora_flwr.report.load import load
from pfedlora_flwr.report.write import write_report
from tests.conftest import Done
from tests.report.made import make_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two seeds on the digits: pFedLoRA with three values of μ, and Standalone, which has no μ and stands beside each."""
    for seed in (0, 1):
        make_run(tmp_path / f"s{seed}", [0.1, 0.2, 0.6], [0.6] * 4, method="standalone", seed=seed, up=0)
        for mu in (0.5, 0.7, 0.9):
            last = mu + seed / 100
            make_run(tmp_path / f"p{mu}{seed}", [0.1, 0.3, last], [last] * 4, method="pfedlora", seed=seed, mu=mu)
    return tmp_path


class Page(HTMLParser):
    """What a page refers to, and the tags that it opened and did not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_report_is_whole_and_its_page_needs_nothing_else(runs: Path, tmp_path: Path) -> None:
    chosen = [runs / f"{name}{seed}" for name in ("p0.5", "s") for seed in (0, 1)]
    written = write_report(chosen, tmp_path / "report", Console(quiet=True))
    out = written.folder
    names = {path.name for path in out.iterdir()}
    assert {"report.md", "report.html", "accuracy.csv", "accuracies.csv", "costs.csv", "headline.csv", "runs.csv"} <= names
    drawn = {name for name in names if name.endswith(".png")}
    assert drawn == {name.replace(".svg", ".png") for name in names if name.endswith(".svg")}
    assert drawn == {"curves_all.png", "clients_all.png", "trade_off_all.png", "partition_all.png"}
    text = (out / "report.md").read_text()
    assert text.startswith(written.text + "## Figures\n")
    assert "| pFedLoRA | " in written.text
    assert re.search(r"No t-SNE for all runs: .* has no checkpoint of the 3 rounds", text)
    assert set(re.findall(r"\]\((.*?)\)", text)) == drawn
    page = Page((out / "report.html").read_text())
    assert page.open == []
    assert len(page.sources) == len(drawn)
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)


@pytest.mark.slow
def test_a_report_draws_the_data_and_models_of_a_real_run(trained_run: Done, tmp_path: Path) -> None:
    out = write_report([trained_run.output], tmp_path / "report", Console(quiet=True)).folder
    assert {"t_sne_all.png", "partition_all.png"} <= {path.name for path in out.iterdir()}
    text = (out / "report.md").read_text()
    assert "each through its own client's final model, all runs, seed 0." in text
    assert "Left out" not in text


def test_the_class_histogram_is_of_the_runs_own_data_or_not_drawn(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    shown: list[np.ndarray] = []
    imshow = Axes.imshow

    def record(self: Axes, counts: np.ndarray, **options: object) -> object:
        shown.append(counts)
        return imshow(self, counts, **options)

    monkeypatch.setattr(Axes, "imshow", record)
    data_figures.histogram(load([runs / "p0.50"]), {}, tmp_path)
    assert np.array_equal(np.nansum(shown[0], axis=1), np.bincount(load_digits().target))  # each image is someone's
    make_run(tmp_path / "own", [0.1, 0.5], [0.5] * 4, method="pfedlora", partition="own")
    with pytest.raises(UserError, match="did not have the data that digits holds here"):
        data_figures.histogram(load([tmp_path / "own"]), {}, tmp_path)


def test_a_place_that_cannot_be_written_is_one_clear_line(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(UserError, match=r"file cannot be written \(File exists\)"):
        write_report([runs], tmp_path / "file", Console(quiet=True))


def test_figures_show_the_runs_numbers(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the robustness figure and the curves hand to matplotlib."""
    from matplotlib.axes import Axes

    drawn: list[tuple[list[float], list[float]]] = []
    plot, errorbar = Axes.plot, Axes.errorbar

    def record_plot(self: Axes, x: list[float], y: list[float], **options: object) -> object:
        drawn.append((x, [round(v, 6) for v in y]))
        return plot(self, x, y, **options)

    def record_errorbar(self: Axes, x: list[float], y: list[float], *rest: object, **options: object) -> object:
        drawn.append((x, [round(v, 6) for v in y]))
        return errorbar(self, x, y, *rest, **options)

    monkeypatch.setattr(Axes, "errorbar", record_errorbar)
    study = load([runs])
    [picture] = figures.robustness(study, tmp_path)
    assert picture.path.name == "robustness_mu.png"
    assert drawn[0][:2] == ([0.5, 0.7, 0.9], [60.0, 60.0, 60.0])
    assert drawn[1][:2] == ([0.5, 0.7, 0.9], [50.5, 70.5, 90.5])
    drawn.clear()
    monkeypatch.setattr(Axes, "errorbar", errorbar)
    monkeypatch.setattr(Axes, "plot", record_plot)
    figures.curves(study, {"mu": 0.9}, tmp_path)
    ours = [10.0, 30.0, 90.5]
    assert drawn[:2] == [([0.0, 1.0, 2.0], [10.0, 20.0, 60.0]), ([0.0, 1.0, 2.0], ours)]
    assert ([480.0, 960.0], ours[1:]) in drawn  # 4 clients × (10 up + 20 down) parameters of 4 bytes; Standalone sends nothing
    assert ([0.0, 4000.0, 8000.0], ours) in drawn


def test_box_plot_and_trade_off_show_the_runs_numbers(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    boxes: list[list[list[float]]] = []
    points: list[tuple[float, float, float]] = []
    boxplot, scatter = Axes.boxplot, Axes.scatter

    def record_boxplot(self: Axes, values: list[list[float]], **options: object) -> object:
        boxes.append([[round(v, 6) for v in box] for box in values])
        return boxplot(self, values, **options)

    def record_scatter(self: Axes, x: float, y: float, s: float, **options: object) -> object:
        points.append((x, round(y, 6), s))
        return scatter(self, x, y, s=s, **options)

    monkeypatch.setattr(Axes, "boxplot", record_boxplot)
    monkeypatch.setattr(Axes, "scatter", record_scatter)
    study = load([runs])
    figures.boxes(study, {"mu": 0.9}, tmp_path)
    assert boxes == [[[60.0] * 8, [90.0] * 4 + [91.0] * 4]]  # Standalone and pFedLoRA, 2 seeds × 4 clients
    picture = figures.trade_off(study, {"mu": 0.9}, tmp_path)
    assert points == [(8000.0, 60.0, 25.0), (8000.0, 90.5, 400.0)]  # whole runs: 2 rounds × 4 clients × 1000 operations
    assert "in the whole run (not every run reaches the target accuracy)" in picture.caption


@pytest.mark.parametrize("rounds", [2, 6, 40, 900])
def test_the_curves_ticks_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """From less than a decade of bytes to three."""

    def save(figure: Any, folder: Path, name: str) -> Path:
        figure.canvas.draw()
        for axis in figure.axes:
            low, high = axis.get_xlim()
            shown = [
                tick.label1 for tick in (*axis.xaxis.get_major_ticks(), *axis.xaxis.get_minor_ticks()) if low <= tick.get_loc() <= high
            ]
            boxes = sorted((t.get_window_extent() for t in shown if t.get_text()), key=lambda box: box.x0)
            assert len(boxes) >= 2
            assert all(left.x1 < right.x0 for left, right in pairwise(boxes)), [t.get_text() for t in shown]
        return folder / name

    make_run(tmp_path / "runs" / "a", [0.1] * (rounds + 1), [0.6, 0.8], up=11_000)
    monkeypatch.setattr(figures, "save", save)
    figures.curves(load([tmp_path / "runs"]), {}, tmp_path)
