"""A page of results: the CSVs beside it, its tables between markers, the numbers in its prose. A
folder may have several pages, each a .md file, of which README.md is the first.

A made table stands between `<!-- table: NAME -->` and `<!-- end -->`. One that cannot be made from
what is committed stands between `<!-- by hand: WHY -->` and `<!-- end -->`. Every decimal and every
`±` of the prose must be a number that the page's module has computed, or is told of."""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.report import measures, style
from pfedlora_flwr.report.measures import Estimate
from pfedlora_flwr.runs.completed import Run, read_run
from pfedlora_flwr.runs.directory import RunDirectory, find_runs
from pfedlora_flwr.runs.result import best_round, sampled_by_round
from pfedlora_flwr.runs.rows import RoundRow

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
Row = dict[str, str]
BySeed = Mapping[str, float]

_MADE = re.compile(r"(<!-- table: ([\w.-]+) -->\n\n)(.*?)(\n\n<!-- end -->)", re.DOTALL)
_BY_HAND = re.compile(r"<!-- by hand: .+? -->\n\n.*?\n\n<!-- end -->", re.DOTALL)
_NO_PROSE = re.compile(
    r"```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->|(?:PyTorch|Flower|version) [\d.]+", re.DOTALL
)
_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_SAID = re.compile(rf"(?:({_NUMBER})\s)?±\s({_NUMBER})|(\d[\d,]*\.\d+)")


class Page:
    """What the module of a page gives, and what the page has.

    Args:
        folder: the page's, with README.md and the CSVs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables: dict[str, list[str]] = {}
        self.files: dict[str, str] = {}
        self.drawings: dict[str, Callable[[Path], Path]] = {}
        self.said: set[str] = set()
        self.quoted: set[tuple[str, str]] = set()

    def rows(self, name: str) -> list[Row]:
        """A CSV of the folder, a dict a row; one that the module has written is read as such."""
        text = self.files.get(name) or (self.folder / name).read_text(encoding="utf-8")
        return list(csv.DictReader(io.StringIO(text)))

    def table(self, name: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """The lines of the table that stands on the page under this name."""
        lines = [header, ["---"] * len(header), *rows]
        texts = (f"| {' | '.join(cells)} |" for cells in lines)
        self.tables[name] = [re.sub(r"\|  (?=\|)", "| ", text) for text in texts]
        self._say_all(self.tables[name][2:])

    def whole(self, name: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table too long for the page: `table-NAME.csv`, whose numbers the prose may have."""
        cells = [[re.sub(r"[*`]", "", cell) for cell in row] for row in rows]
        self.csv(f"table-{name}.csv", [re.sub(r"[*`]", "", cell) for cell in header], cells)
        self._say_all(" ; ".join(row) for row in cells)

    def _say_all(self, lines: Iterable[str]) -> None:
        for line in lines:
            for mean, half, plain in _SAID.findall(line):
                self._say(plain or mean, half)

    def csv(self, name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A CSV that is computed from others."""
        self.files[name] = _csv(header, rows)

    def picture(self, name: str, draw: Callable[[Path], Path]) -> None:
        """A PNG or SVG that `draw` makes in the folder that it is given; it returns the path."""
        self.drawings[name] = draw

    @cached_property
    def pictures(self) -> dict[str, bytes]:
        """The pictures, drawn when they are asked for."""
        with TemporaryDirectory() as folder:
            return {name: draw(Path(folder)).read_bytes() for name, draw in self.drawings.items()}

    def says(self, *values: Estimate | float | None, seeds: bool = False) -> None:
        """Numbers that the prose may have: estimates of fractions (with `seeds` each seed's, too),
        or numbers as they are."""
        for value in values:
            if isinstance(value, Estimate):
                half = "" if value.half is None else f"{100 * value.half:.9f}"
                self._say(f"{100 * abs(value.mean):.9f}", half)
                for each in value.values if seeds else ():
                    self._say(f"{100 * abs(each):.9f}", "")
            elif value is not None:
                self._say(f"{abs(value):.9f}", "")

    def settings(self, *numbers: str) -> None:
        """Numbers of the prose that are settings, or that others have published: as they stand."""
        self.said.update(numbers)

    def quotes(self, other: str, *numbers: str) -> None:
        """Numbers of the prose that the page in the folder `other` computes."""
        self.quoted.update((other, number) for number in numbers)
        self.said.update(numbers)

    def not_kept(self, *numbers: str) -> None:
        """Numbers of the prose that were computed from runs that are kept no longer."""
        self.said.update(numbers)

    def _say(self, mean: str, half: str) -> None:
        """A number, or a mean with its half-width, at its own places and at fewer."""
        mean, half = mean.replace(",", ""), half.replace(",", "")
        for places in (0, 1, 2, 3):
            m, h = (_rounded(text, places) if text else "" for text in (mean, half))
            self.said |= {m, f"± {h}", f"{m} ± {h}"}

    def texts(self) -> dict[Path, str]:
        """The folder's pages."""
        paths = sorted(self.folder.glob("*.md"))
        return {path: path.read_text(encoding="utf-8") for path in paths}

    def text(self) -> str:
        return "\n\n".join(self.texts().values())

    def written(self, text: str) -> str:
        """A page with its tables as the module gives them."""

        def fresh(found: re.Match[str]) -> str:
            lines = self.tables.get(found[2])
            return found[0] if lines is None else found[1] + "\n".join(lines) + found[4]

        return _MADE.sub(fresh, text)

    def differences(self, *, pictures: bool) -> Iterator[str]:
        """A line for each thing in which the folder differs from what the module gives."""
        text = self.text()
        there = {found[2]: found[3].split("\n") for found in _MADE.finditer(text)}
        for name in self.tables.keys() ^ there.keys():
            kind = "is made and not on the page" if name in self.tables else "is made by nothing"
            yield f"table {name} {kind}"
        for name in self.tables.keys() & there.keys():
            yield from _lines(f"table {name}", there[name], self.tables[name])
        rest = _BY_HAND.sub("", _MADE.sub("", text))
        for line in re.findall(r"^\|.*", rest, re.MULTILINE)[:1]:
            yield f"a table without markers: {line[:60]}"
        for number in self.unknown(rest):
            yield f"{number} is in the prose, and neither computed nor named as a setting"
        for name, made in self.files.items():
            path = self.folder / name
            had = path.read_text(encoding="utf-8") if path.exists() else ""
            yield from _lines(name, had.splitlines(), made.splitlines())
        yield from self.drawn_otherwise(pictures=pictures)

    def drawn_otherwise(self, *, pictures: bool) -> Iterator[str]:
        for name, drawn in (self.pictures if pictures else {}).items():
            path = self.folder / name
            if not path.exists() or path.read_bytes() != drawn:
                yield f"{name} is drawn otherwise"

    def unknown(self, text: str) -> list[str]:
        """The numbers of a text that the module has not said."""
        found = []
        for mean, half, plain in _SAID.findall(_NO_PROSE.sub(" ", text)):
            number = plain or (f"{mean} ± {half}" if mean else f"± {half}")
            if number.replace(",", "") not in self.said:
                found.append(number)
        return found

    def write(self, *, pictures: bool) -> None:
        for path, text in self.texts().items():
            path.write_text(self.written(text), encoding="utf-8")
        for name, made in self.files.items():
            (self.folder / name).write_text(made, encoding="utf-8")
        for name, drawn in (self.pictures if pictures else {}).items():
            (self.folder / name).write_bytes(drawn)


def completed(folder: Path) -> Iterator[tuple[RunDirectory, Any]]:
    """The completed runs in a folder, each with its result.json."""
    for file in sorted(folder.rglob("result.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        if result["status"] == "completed":
            yield RunDirectory(file.parent), result


COUNTED = ("best_round", "at_best_validation", "final", "operations")


def counted(
    folders: Iterable[Path], keys: Callable[[Experiment], Sequence[object]]
) -> list[list[object]]:
    """A row for each completed run in those folders: `keys` of its Experiment, and COUNTED."""
    found: list[list[object]] = []
    for folder in folders:
        for run, said in completed(folder):
            e, rows = run.experiment(), [*run.rounds()]
            best = best_round(e, rows)
            accuracies = best["accuracy"], said["accuracy"]["final"]
            operations = sum(row["flops"] for row in rows)
            found.append([*keys(e), best["round"], *accuracies, operations])
    return sorted(found, key=str)


OF_ROUND = ("round", "validation", "accuracy", "sampled", "operations")
"""Means in [0, 1] over all clients, and over the sampled ones right after their training; and FLOP
from the beginning."""


def each_round(
    folders: Iterable[Path], keys: Callable[[Experiment], Sequence[object]]
) -> Iterator[list[object]]:
    """A row for each round of the completed runs in those folders: `keys` of the Experiment, and
    OF_ROUND."""
    for folder in folders:
        for run, _ in completed(folder):
            who, of_sampled, done = keys(run.experiment()), sampled_by_round(run.visits()), 0
            for row in run.rounds():
                done += row["flops"]
                means = row["validation_accuracy"], row["accuracy"]
                mean = of_sampled.get(row["round"], "")
                yield [*who, row["round"], *means, mean, done]


def end_of(rounds: Sequence[Row]) -> list[float]:
    """Accuracies of a run, in [0, 1], of its rows by `each_round`: at the best validation accuracy,
    the earliest of ties, and final; of the sampled clients, of the last round and the highest."""
    best = max(rounds, key=lambda row: float(row["validation"]))
    of_sampled = [float(row["sampled"]) for row in rounds if row["sampled"]]
    return [float(best["accuracy"]), float(rounds[-1]["accuracy"]), of_sampled[-1], max(of_sampled)]


def bonferroni(e: Estimate, tests: int) -> Estimate:
    """The same mean with an interval that holds together with those of the other such tests."""
    assert e.half is not None
    wider = measures.bound(len(e.values), 0.05 / tests) / measures.bound(len(e.values), 0.05)
    return Estimate(e.values, e.mean, e.half * wider)


def completed_runs(folder: Path) -> list[Run]:
    """The completed runs in a folder, at any depth."""
    return [
        run for directory in find_runs(folder) if isinstance(run := read_run(directory.path), Run)
    ]


def round_within(rounds: Sequence[RoundRow], flops: float) -> int:
    """The last round of a run up to which the clients have executed no more operations."""
    spent = accumulate(row["flops"] for row in rounds)
    return max(t for t, total in enumerate(spent) if total <= flops)


def last_within(rounds: Iterable[Row], most: float) -> Row:
    """Of a run's rows by `each_round` the last at which no more operations were executed."""
    return [row for row in rounds if float(row["operations"]) <= most][-1]


def merged(
    path: Path, columns: Sequence[str], keys: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Puts rows among those of a CSV: in the place of one with the same keys, else at its end."""
    at = [columns.index(name) for name in keys]
    with path.open(encoding="utf-8", newline="") as file:
        there = [*csv.reader(file)][1:]
    found = {
        tuple(texts[place] for place in at): texts
        for row in (*there, *rows)
        for texts in [[*map(str, row)]]
    }
    write_csv(path, columns, found.values())


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    path.write_text(_csv(header, rows), encoding="utf-8")


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def _rounded(number: str, places: int) -> str:
    return str(Decimal(number).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP))


def _lines(what: str, had: Sequence[str], made: Sequence[str]) -> Iterator[str]:
    """The first line in which two texts differ, and how many do."""
    if len(had) != len(made):
        yield f"{what} has {len(had)} lines, and the data give {len(made)}"
    differing = [(a, b) for a, b in zip(had, made, strict=False) if a != b]
    if differing:
        more = f" (and {len(differing) - 1} lines more)" if len(differing) > 1 else ""
        yield f"{what}: the page has `{differing[0][0]}`, the data give `{differing[0][1]}`{more}"


def by_seed(rows: Iterable[Row], column: str, **where: str) -> BySeed:
    """A column of a run table by seed, of the rows in which these columns have these values."""
    found = {
        (row["seed"], float(row[column]))
        for row in rows
        if all(row[key] == value for key, value in where.items())
    }
    values = dict(sorted(found))
    assert len(values) == len(found), f"a seed has two values of {column}: {where}"
    return values


def estimate(values: BySeed) -> Estimate:
    """The mean over the seeds with its 95 % t-interval."""
    found = measures.estimate(list(values.values()))
    assert found is not None, "no seed"
    return found


def difference(ours: BySeed, theirs: BySeed) -> Estimate:
    """The mean of the differences paired by seed with its 95 % t-interval."""
    found = measures.difference(ours, theirs)
    assert found is not None, "no common seed"
    return found


def operations(
    rows: Iterable[Row], column: str = "operations", sharing: str = "mean"
) -> dict[str, float]:
    """Of each method, as multiples of Standalone's, means over the seeds."""
    counted: dict[str, list[int]] = {}
    for row in rows:
        if row["sharing"] == sharing or row["method"] == "standalone":
            counted.setdefault(row["method"], []).append(int(row[column]))
    means = {method: statistics.fmean(values) for method, values in counted.items()}
    return {method: mean / means["standalone"] for method, mean in means.items()}


def percent(e: Estimate) -> str:
    """`50.77 ± 1.88`; of fewer than three seeds each seed's."""
    if e.half is None:
        return ", ".join(f"{100 * value:.2f}" for value in e.values)
    return f"{100 * e.mean:.2f} ± {100 * e.half:.2f}"


def points(e: Estimate) -> str:
    """`**+4.00 ± 0.61**`, bold where `sign` is not 0."""
    if e.half is None:
        return ", ".join(signed(100 * value) for value in e.values)
    text = f"{signed(100 * e.mean)} ± {100 * e.half:.2f}"
    return f"**{text}**" if e.sign else text


Panels = Mapping[str, Sequence[tuple[str, Estimate]]]
"""By a panel's title its lines: a name and a difference. All panels have the same names."""


def forest(panels: Panels, label: str, path: Path) -> Path:
    """Draws differences in points with their 95 % t-intervals, a line each, beside 0."""
    lines = max(len(rows) for rows in panels.values())
    size = 3.6 * max(len(panels), 1.5), 0.9 + 0.25 * lines
    with style.drawing(1, len(panels), size, sharey="row") as (figure, axes):
        for axis, (title, rows) in zip(axes[0], panels.items(), strict=True):
            for place, (_, e) in enumerate(reversed(rows)):
                half = 100 * (e.half or 0)
                axis.errorbar(100 * e.mean, place, xerr=half, fmt="o", color=style.OKABE_ITO[6])
            axis.axvline(0, color="#808080", linewidth=0.8)
            axis.set_title(title)
            axis.set_xlabel(label)
        names = [name.replace("`", "") for name, _ in reversed(next(iter(panels.values())))]
        axes[0][0].set_yticks(range(len(names)), names)
        figure.savefig(path)
    return path


def signed(value: float, places: int = 2) -> str:
    """`−0.24`: with its sign, a minus that is as wide as the plus."""
    return minus(f"{value:+.{places}f}")


def minus(text: str) -> str:
    """Hyphens before digits as minus signs."""
    return re.sub(r"-(?=\d)", "−", text)
