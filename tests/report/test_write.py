"""A whole report: its files, its page, and its figures' data."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from pfedlora_flwr.data.local import forget
from pfedlora_flwr.data.partition import Partition
from pfedlora_flwr.data.split import Split
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.report import data_figures, figures, opening, shown, style, write
from pfedlora_flwr.report.data_figures import names_height
from pfedlora_flwr.report.load import load
from pfedlora_flwr.report.write import write_report
from scripts.declare import ROOT
from tests.conftest import Done, run_locally
from tests.report.made import make_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two seeds on the digits: pFedLoRA with three values of μ, and Standalone, which has no μ and
    stands beside each."""
    for seed in (0, 1):
        make_run(tmp_path / f"s{seed}", [0.1, 0.2, 0.6], 4, method="standalone", seed=seed, up=0)
        for mu in (0.5, 0.7, 0.9):
            last = mu + seed / 100
            make_run(
                tmp_path / f"p{mu}{seed}", [0.1, 0.3, last], 4, method="pfedlora", seed=seed, mu=mu
            )
    return tmp_path


class Page(HTMLParser):
    """What a page refers to, and the tags that it opened and did not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.open: list[str] = []
        self.opened: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]
        self.opened.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.slow
def test_a_report_is_whole_and_its_page_needs_nothing_else(runs: Path, tmp_path: Path) -> None:
    chosen = [runs / f"{name}{seed}" for name in ("p0.5", "s") for seed in (0, 1)]
    written = write_report(chosen, tmp_path / "report")
    out = written.folder
    names = {path.name for path in out.iterdir()}
    assert {
        "report.md",
        "report.html",
        "accuracy.csv",
        "accuracies.csv",
        "costs.csv",
        "runs.csv",
    } <= names
    drawn = {name for name in names if name.endswith(".png")}
    for suffix in (".svg", ".pdf"):
        assert drawn == {name.replace(suffix, ".png") for name in names if name.endswith(suffix)}
    tables = {name.replace(".csv", ".tex") for name in names if name.endswith(".csv")}
    assert tables - {"runs.tex"} == {name for name in names if name.endswith(".tex")}
    assert drawn == {
        "curves_all.png",
        "clients_all.png",
        "partition_all.png",
        "inputs_all.png",
        "gain.png",
        "sites.png",
    }
    text = (out / "report.md").read_text()
    assert "| pFedLoRA | " in text
    assert written.table.columns[0] == "method"
    assert re.search(r"No t-SNE for all runs: .* has no checkpoint of the 3 rounds", text)
    assert set(re.findall(r"\]\((.*?)\)", text)) == drawn
    page = Page((out / "report.html").read_text())
    assert page.open == []
    assert page.opened.count("figure") == len(drawn)
    assert all(source.startswith(("#", "data:image/png;base64,")) for source in page.sources)
    conclusion = (
        "With fewer than 3 seeds in common nothing is claimed; test accuracy by seed: Standalone"
        " 60.00, 60.00 %"
    )
    assert text.split("\n")[2].startswith(conclusion)
    assert conclusion in (out / "report.html").read_text()
    (out / "mine.png").write_bytes(b"a user's")
    write_report([runs / "s0"], out)
    left = {path.name for path in out.iterdir() if path.suffix in (".png", ".svg", ".pdf")}
    of_one = {
        f"{stem}_all{end}"
        for stem in ("curves", "partition", "inputs")
        for end in (".png", ".svg", ".pdf")
    }
    assert left == {"mine.png"} | of_one


@pytest.mark.slow
def test_a_figure_drawn_twice_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with style.drawing(1, 1, (2, 2)) as (figure, axes):
            axes[0, 0].plot([0, 1], [0, 1], label="μ")
            (tmp_path / name).mkdir()
            style.save(figure, tmp_path / name, "figure")
    for suffix in ("png", "svg", "pdf"):
        one, two = ((tmp_path / name / f"figure.{suffix}").read_bytes() for name in ("one", "two"))
        assert one == two
        assert b"Date" not in one


@pytest.mark.slow
def test_a_report_draws_the_data_and_models_of_a_real_run(
    trained_run: Done, tmp_path: Path
) -> None:
    out = write_report([trained_run.output], tmp_path / "report").folder
    assert {"t_sne_all.png", "partition_all.png", "inputs_all.png"} <= {
        path.name for path in out.iterdir()
    }
    text = (out / "report.md").read_text()
    assert "the input of the last layer of its own client's final model" in text
    assert "Left out" not in text
    assert "Versions of nodes" not in text  # they are this machine's
    assert trained_run.stdout.endswith("its tables, figures and page: pfedlora report trained\n")
    assert re.match(
        r"# trained\n\npFedLoRA reaches [\d.]+ % mean test accuracy over 3 clients \(one run, after"
        r" round \d of 3",
        text,
    )
    assert "- Data: digits: 1,797 images of 32 × 32 × 3, 10 classes\n" in text
    assert "\n| 2 | cnn3 | " in text  # its clients


@pytest.mark.slow
def test_the_class_histogram_is_of_the_runs_own_data_or_not_drawn(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laid_out: None
) -> None:
    from matplotlib.axes import Axes

    shown: list[np.ndarray] = []
    shades: list[Any] = []
    imshow = Axes.imshow

    def record(self: Axes, counts: np.ndarray, **options: Any) -> object:
        shown.append(counts)
        shades.append(options["cmap"])
        return imshow(self, counts, **options)

    monkeypatch.setattr(Axes, "imshow", record)
    data_figures.histogram(load([runs / "p0.50"]), {}, tmp_path)
    # each image is someone's
    assert np.array_equal(shown[0].sum(axis=1), np.bincount(load_digits().target))
    most = shown[0].max()
    # blank, seen, full
    assert [float(shades[0](n / most)[3]) for n in (0, 1, most)] == [0.0, 0.12, 1.0]
    make_run(tmp_path / "own", 0.5, 4, method="pfedlora", partition="own")
    with pytest.raises(UserError, match="sites had data of their own, which is not here"):
        data_figures.histogram(load([tmp_path / "own"]), {}, tmp_path)


def test_a_place_that_cannot_be_written_is_one_clear_line(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(UserError, match=r"file cannot be written \(File exists\)"):
        write_report([runs], tmp_path / "file")


@pytest.mark.slow
def test_figures_show_the_runs_numbers(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laid_out: None
) -> None:
    """What the robustness figure and the curves hand to matplotlib."""
    from matplotlib.axes import Axes

    drawn: list[tuple[list[float], list[float]]] = []
    plot, errorbar = Axes.plot, Axes.errorbar

    def record_plot(self: Axes, x: list[float], y: list[float], **options: object) -> object:
        drawn.append((x, [round(v, 6) for v in y]))
        return plot(self, x, y, **options)

    def record_errorbar(
        self: Axes, x: list[float], y: list[float], *rest: object, **options: object
    ) -> object:
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
    # 4 clients × (10 up + 20 down) parameters of 4 bytes; Standalone sends nothing
    assert ([480.0, 960.0], ours[1:]) in drawn
    assert ([0.0, 4000.0, 8000.0], ours) in drawn
    # nothing had been evaluated before round 1
    copy = tmp_path / "copy"
    shutil.copytree(runs, copy)
    for file in copy.rglob("rounds.jsonl"):
        first, *rest = map(json.loads, file.read_text().splitlines())
        lines = [first | {"accuracy": 0.0, "evaluated": 0}, *rest]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn.clear()
    figures.curves(load([copy]), {"mu": 0.9}, tmp_path)
    assert drawn[:2] == [([1.0, 2.0], [20.0, 60.0]), ([1.0, 2.0], ours[1:])]
    # nor ever
    for file in copy.rglob("rounds.jsonl"):
        lines = [json.loads(line) | {"evaluated": 0} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn.clear()
    figures.curves(load([copy]), {"mu": 0.9}, tmp_path)
    assert drawn == []


@pytest.mark.slow
def test_the_box_plot_shows_the_runs_numbers(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laid_out: None
) -> None:
    from matplotlib.axes import Axes

    boxes: list[list[list[float]]] = []
    boxplot = Axes.boxplot

    def record_boxplot(self: Axes, values: list[list[float]], **options: object) -> object:
        boxes.append([[round(v, 6) for v in box] for box in values])
        return boxplot(self, values, **options)

    monkeypatch.setattr(Axes, "boxplot", record_boxplot)
    figures.boxes(load([runs]), {"mu": 0.9}, tmp_path)
    # Standalone and pFedLoRA, 2 seeds × 4 clients
    assert boxes == [[[60.0] * 8, [90.0] * 4 + [91.0] * 4]]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of all ticks that figures are saved with from now on; that none touches another is
    checked."""
    from matplotlib.figure import Figure

    texts: list[str] = []

    def check(self: Figure, path: Path, **options: object) -> None:
        self.draw_without_rendering()
        for axis, side in (
            (a, side) for axes in self.axes for side, a in enumerate((axes.xaxis, axes.yaxis))
        ):
            low, high = axis.get_view_interval()
            ticks = [
                t
                for t in (*axis.get_major_ticks(), *axis.get_minor_ticks())
                if low <= t.get_loc() <= high
            ]
            labels = [
                t.label1
                for t in ticks
                if t.label1.get_visible() and t.label1.get_text() and not t.label1.get_rotation()
            ]
            boxes = sorted(
                (label.get_window_extent() for label in labels), key=lambda box: box.min[side]
            )
            texts.extend(label.get_text() for label in labels)
            assert all(one.max[side] < other.min[side] for one, other in pairwise(boxes)), [
                label.get_text() for label in labels
            ]

    monkeypatch.setattr(Figure, "savefig", check)
    return texts


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 6, 900])
def test_the_curves_ticks_stand_side_by_side(tmp_path: Path, drawn: list[str], rounds: int) -> None:
    """From less than a decade of bytes to three; rounds are whole, bytes in their units."""
    make_run(tmp_path / "runs" / "a", [0.1] * (rounds + 1), [0.6, 0.8], up=11_000)
    figures.curves(load([tmp_path / "runs"]), {}, tmp_path)
    assert any(text.endswith(("kB", "MB")) for text in drawn)
    assert "0.5" not in drawn


@pytest.mark.slow
def test_no_ticks_touch_in_the_other_figures(tmp_path: Path, drawn: list[str]) -> None:
    for n, mu in enumerate((0.01, 0.1, 0.11, 0.12, 0.5)):
        for seed in (0, 1, 2):
            make_run(
                tmp_path / "runs" / f"{n}{seed}",
                mu,
                60,
                method="pfedlora",
                mu=mu,
                seed=seed,
                flops=10**9 + n,
            )
    study = load([tmp_path / "runs"])
    figures.robustness(study, tmp_path)
    assert {"0.01", "0.1", "0.5"} <= {*drawn}
    for draw in (figures.boxes, data_figures.histogram):
        draw(study, study.scenarios[0], tmp_path)


def test_long_names_are_cut_and_stand_below_a_figure_that_grows() -> None:
    assert style.literal(["ward 12$", "University Hospital, ward 12"], 13) == [
        r"ward 12\$",
        "Univer…ard 12",
    ]
    few, many = (
        Partition((Split(*[np.arange(3)] * 3),) * len(owners), owners)
        for owners in (("a", "b"), ("University Hospital, ward 12",) * 2)
    )
    assert names_height(few) == 0
    assert 1 < names_height(many) < 2


def test_a_report_tells_of_no_other_data_than_the_runs_and_of_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "drawers", lambda *_: {})
    monkeypatch.setenv("PFEDLORA_CACHE", str(tmp_path / "cache"))
    file, rows = tmp_path / "private" / "t.csv", [f"{i},{'abc'[i % 3]}" for i in range(60)]
    file.parent.mkdir()
    file.write_text("\n".join(["x,label", *rows, ""]))
    make_run(tmp_path / "run", [0.1, 0.5], [0.5, 0.6], dataset=f"csv:{file}")
    study = load([tmp_path / "run"])

    def told() -> str:
        forget()
        return dict(opening.facts(study))["Data"]

    def left_out() -> str:
        return "\n".join(write._draw(study, [], tmp_path)[1])

    assert told() == "csv:t.csv: 60 rows of 1 features, 3 classes"
    file.write_text("\n".join(["x,label", *rows, "1,d", "2,d", ""]))
    assert told() == "csv:t.csv: the data that its clients had is not here"
    assert "No class histogram for all runs: the run's clients did not have the" in left_out()
    file.unlink()
    assert told() == "csv:t.csv: the data that its clients had is not here"
    assert "No class histogram for all runs: t.csv does not exist." in left_out()
    assert str(tmp_path) not in left_out()


@pytest.mark.slow
def test_names_with_dollar_signs_are_no_formulas(tmp_path: Path) -> None:
    """Of classes and owners, in figures of inputs and of the partition."""
    draws = np.random.default_rng(0)
    owners, images = np.repeat(["a$_$", "$b^$"], 40), draws.integers(0, 256, (80, 16, 16), np.uint8)
    labels, names = np.tile([0, 1], 40), ["$5_$10", "10^$20_$"]
    file = tmp_path / "named.npz"
    np.savez(file, images=images, labels=labels, class_names=names, clients=owners)
    keys = {"partition.kind": "natural", "clients": 2, "rounds": 1, "method": "standalone"}
    done = run_locally(tmp_path / "run", keys | {"dataset": f"npz:{file}"})
    assert done.code == 0
    study = load([done.output])
    assert all(shown.figure(study, kind, {}).axes for kind in ("partition", "inputs"))


def test_the_documents_name_every_table_and_figure() -> None:
    package = ROOT / "pfedlora_flwr"
    files = [*(package / "report").glob("*.py"), *(package / "features").glob("*/table.py")]
    source = "".join(path.read_text() for path in files)
    tables = re.findall(r'Table\(\s*"(\w+)"', source)
    figures = re.findall(r'save\(figure, \w+, f?"(\w+?)_?["{]', source)
    assert {"accuracy", "missing"} < set(tables)
    assert {"curves", "held_out", "t_sne"} < set(figures)
    section = (ROOT / "docs/output.md").read_text().partition("### A report")[2]
    section = section.partition("<!--")[0]
    assert [name for name in {*tables, *figures} if f"`{name}" not in section] == []
