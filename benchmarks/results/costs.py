"""Communication and computation to a target accuracy, of the reports' tables of costs.

The CSVs are `costs.csv` of `pfedlora report RUNS --target T`; what a visit sends is arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.results.page import Page, Row
from pfedlora_flwr.report import style

TITLES = ("CIFAR-10, to 84 %", "CIFAR-100, to 24 %")
FILES = ("cifar10-84.csv", "cifar100-24.csv")
COLUMNS = ("rounds", "parameters, paper", "parameters, full", "FLOP, full")
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
PAIR = ("pFedLoRA", "FedProto")
SHOWN = ("Standalone", "FD", "FedProto", "pFedLoRA", "FedProto ÷ pFedLoRA", "the paper, at most")
WIDTH = 500
"""Of a representation."""
CLAIMED = "7.41"


def make(page: Page) -> None:
    tables = [{row["method"]: row for row in page.rows(name)} for name in FILES]
    lines = [
        [m, *(shown(table[m], column) for table in tables for column in COLUMNS)] for m in tables[0]
    ]
    ratios = [ratio(table, column) for table in tables for column in COLUMNS]
    lines.append(["FedProto ÷ pFedLoRA", *(f"{value:.2g}" for value in ratios)])
    lines.append(["the paper, at most", *(["", CLAIMED, "", "11.81"] * 2)])
    names = ("rounds", "rounds × one upload", "all, both ways", "operations")
    first = (f"CIFAR-10, to 84 %: {names[0]}", *names[1:])
    header = ("method", *first, f"CIFAR-100, to 24 %: {names[0]}", *names[1:])
    page.whole("to-target", header, lines)
    page.table("shown", header, (line for line in lines if line[0] in SHOWN))
    page.picture("costs.png", lambda folder: draw(tables, folder))
    visits(page)
    page.says(*with_mu(page))
    page.settings("7.41", "11.81", "0.5", "0.9")
    page.not_kept("83.2", "86.7", "84.6")  # single rounds of pFedLoRA on CIFAR-10
    page.quotes("leaderboard", "1.33")


def with_mu(page: Page) -> tuple[float, float]:
    """With μ = 0.9 on CIFAR-100 to 24 %: pFedLoRA's numbers ÷ FedProto's, counted as rounds × one
    upload, and both ways."""
    rows = Page(page.folder.parent / "methods" / "cifar100").rows("rounds.csv")
    there = (row for row in rows if row["run"] == "mu=0.9" and float(row["accuracy"]) >= 0.24)
    rounds = int(next(there)["round"])
    ours, theirs = ({row["method"]: row for row in page.rows(FILES[1])}[m] for m in PAIR)
    per_round = {c: number(ours[c]) / int(ours["rounds"]) for c in COLUMNS[1:3]}
    once, both = (rounds * per_round[c] / number(theirs[c]) for c in COLUMNS[1:3])
    return once, both


def shown(row: Row, column: str) -> str:
    return "–" if row["rounds"] == "not reached" else row[column]


def ratio(table: dict[str, Row], column: str) -> float:
    return number(table["FedProto"][column]) / number(table["pFedLoRA"][column])


def number(text: str) -> float:
    """`1.05 M` as it is meant."""
    value, _, unit = text.partition(" ")
    return float(value) * UNITS.get(unit, 1)


def draw(tables: Sequence[dict[str, Row]], folder: Path) -> Path:
    """Rounds to the target by method, a panel a dataset."""
    with style.drawing(1, 2, (7.2, 3.0), sharey="row") as (figure, axes):
        names = [*reversed(tables[0])]
        for axis, table, title in zip(axes[0], tables, TITLES, strict=True):
            for place, name in enumerate(names):
                reached = table[name]["rounds"] != "not reached"
                colour = style.OKABE_ITO[0 if name in PAIR else 7]
                axis.barh(place, int(table[name]["rounds"]) if reached else 0, color=colour)
            axis.set_title(title)
            axis.set_xlabel("rounds")
        axes[0][0].set_yticks(range(len(names)), names)
        figure.savefig(folder / "costs.png")
    return folder / "costs.png"


def visits(page: Page) -> None:
    """What one client sends in a visit, and how many times the rounds would make up for it."""
    lines, needed = [], []
    for name, held, classes in (("CIFAR-10", 2, 10), ("CIFAR-100", 10, 100)):
        ours = [WIDTH * h + h + h * classes + classes for h in (60, 20)]
        theirs = [WIDTH * held, WIDTH * classes]
        word = {2: "two", 10: "ten"}[held]
        cells = [f"{n:,}" for n in (*ours, *theirs)]
        lines.append([f"{name}, {word} classes per client", *cells])
        times = [float(CLAIMED) * a / b for b in theirs for a in ours]
        needed.append(
            [name, *(f"{value:.0f}" if value >= 9.5 else f"{value:.1f}" for value in times)]
        )
    columns = ("pFedLoRA, h = 60", "h = 20", "FedProto, the classes held", "FedProto, all classes")
    page.whole("visit", ("numbers of one visit", *columns), lines)
    columns = ("classes held, h = 60", "h = 20", "all classes, h = 60", "h = 20")
    page.whole("needed", ("times pFedLoRA's rounds", *columns), needed)
