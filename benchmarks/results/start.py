"""A common start: runs.csv, of comparisons by `benchmarks/start.yaml`. And a long training:
rounds.csv, a row a round, of comparisons by `quick/leaderboard` with more rounds.

    python -m benchmarks.results.start runs.csv|rounds.csv FOLDER..."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.results.page import (
    COUNTED,
    OF_ROUND,
    RESULTS,
    Page,
    Row,
    by_seed,
    counted,
    difference,
    each_round,
    end_of,
    estimate,
    last_within,
    merged,
    operations,
    percent,
    points,
    signed,
)
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import style
from pfedlora_flwr.report.paper import ACCURACY

KEYS = ("method", "mu", "sharing", "seed")
COLUMNS = (*KEYS, *COUNTED)
COUNT = "at_best_validation"
EVERY = 30
BOARD = 60
"""The leaderboard's rounds."""
ROUNDS = 300
ALONE = ("standalone", "", "mean")
Long = tuple[str, str, str]
"""A run: its method, μ and sharing."""
PAPER = ACCURACY["heterogeneous"]["cifar100"]


def make(page: Page) -> None:
    common_start(page)
    long(page)


def common_start(page: Page) -> None:
    rows = page.rows("runs.csv")
    alone = by_seed(rows, COUNT, method="standalone", sharing="mean")
    page.says(estimate(alone), seeds=True)
    lines = [["Standalone", percent(estimate(alone)), "", "", "", ""]]
    for method in registry.ordered({row["method"] for row in rows} - {"standalone"}):
        for mu in sorted({row["mu"] for row in rows if row["method"] == method}):
            mean, none = (
                by_seed(rows, COUNT, method=method, mu=mu, sharing=kind)
                for kind in ("mean", "none")
            )
            lead = difference(mean, alone)
            page.says(estimate(mean), lead, seeds=True)
            cells = ["= Standalone", "", points(lead), ""]
            if none:
                gain, own = difference(mean, none), difference(none, alone)
                page.says(estimate(none), gain, own, seeds=True)
                shown = points(gain, seeds=gain.half is not None)
                cells = [percent(estimate(none)), shown, points(lead), points(own)]
            lines.append([titled(method, mu), percent(estimate(mean)), *cells])
    header = ("with sharing", "`sharing=none`", "gain from sharing", "− Standalone")
    page.table("start", ("method", *header, "none − Standalone"), lines)
    page.says(*operations(rows).values())
    page.settings("0.5", "0.9", "2.7", "25.68", "22.97")
    page.quotes("sensitivity", "0.23 ± 1.22")


def long(page: Page) -> None:
    """One seed beyond the leaderboard's rounds: its end by all ways of counting, and its course."""
    found: dict[Long, list[Row]] = {}
    for row in page.rows("rounds.csv"):
        found.setdefault((row["method"], row["mu"], row["sharing"]), []).append(row)
    order = registry.ordered({method for method, _, _ in found})
    runs = {key: found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), key))}
    alone = runs[ALONE]
    ends = {key: [100 * value for value in end_of(rows)] for key, rows in runs.items()}
    lines, course = [], []
    for key, rows in runs.items():
        if len(rows) == len(alone):
            leads = [one - other for one, other in zip(ends[key], ends[ALONE], strict=True)]
            page.says(*ends[key], *leads)
            shown = [f"{value:.2f}" for value in ends[key]]
            lead = "" if key == ALONE else signed(leads[0])
            printed = PAPER[key[0]][-1] if key[0] in PAPER and key[2] == "mean" else None
            above = "" if key == ALONE else above_from(rows, alone)
            cells = [shown[0], lead, above, *shown[1:], f"{printed:.2f}" if printed else ""]
            lines.append([titled(*key), *cells])
        course.append([titled(*key), *apart(page, rows, None if key == ALONE else alone)])
        if (with_ := runs.get((*key[:2], "mean"))) and key[2] == "none":
            course.append([f"gain from sharing{mu_of(key[1])}", *apart(page, with_, rows)])
    header = ("all clients, at best validation", "− Standalone", "above it from round", "final")
    sampled = ("sampled, last round", "sampled, highest round", "the paper")
    page.table("long", ("method", *header, *sampled), lines)
    page.table("course", ("round", *(row["round"] for row in alone[EVERY::EVERY])), course)
    page.picture("long.png", lambda folder: draw(runs, folder))
    at_equal_operations(page, runs)
    there = Page(RESULTS / "leaderboard").rows("runs.csv")
    page.says(100 * by_seed(there, "final", method="pfedlora", sharing="mean")["0"])
    page.says(*(100 * float(rows[BOARD]["accuracy"]) for rows in runs.values()))
    page.says(100 * (float(alone[-1]["accuracy"]) - float(alone[ROUNDS // 2]["accuracy"])))


def above_from(rows: list[Row], alone: list[Row]) -> str:
    """The round from which on a run is above Standalone in every one; empty where it is not."""
    below = [
        int(ours["round"])
        for ours, theirs in zip(rows, alone, strict=True)
        if float(ours["accuracy"]) <= float(theirs["accuracy"])
    ]
    return "" if max(below) == ROUNDS else str(max(below) + 1)


def apart(page: Page, rows: list[Row], others: list[Row] | None) -> list[str]:
    """Accuracies every some rounds in percent, or their differences to others' in points; empty
    where one of the two has ended."""
    cells = []
    for t in range(EVERY, ROUNDS + 1, EVERY):
        if t >= min(len(rows), len(others or rows)):
            cells.append("")
            continue
        value = 100 * float(rows[t]["accuracy"])
        value -= 100 * float(others[t]["accuracy"]) if others else 0
        page.says(value)
        cells.append(signed(value) if others else f"{value:.2f}")
    return cells


def at_equal_operations(page: Page, runs: Mapping[Long, list[Row]]) -> None:
    """Where the others have executed Standalone's operations, their accuracy minus Standalone's
    at its end."""
    alone = runs[ALONE][-1]
    for key, rows in runs.items():
        page.says(float(rows[-1]["operations"]) / float(runs[ALONE][len(rows) - 1]["operations"]))
        there = last_within(rows, float(alone["operations"]))
        if key != ALONE and there is not rows[-1]:
            page.says(100 * (float(there["accuracy"]) - float(alone["accuracy"])))


def titled(method: str, mu: str, sharing: str = "mean") -> str:
    name = registry.title(method) + mu_of(mu)
    return name if sharing == "mean" else f"{name}, `sharing={sharing}`"


def mu_of(mu: str) -> str:
    return f", μ = {mu}" if mu else ""


def draw(runs: Mapping[Long, list[Row]], folder: Path) -> Path:
    """All clients' mean accuracy against rounds, a line a run."""
    with style.drawing(1, 1, (5, 2.6)) as (figure, axes):
        axis = axes[0][0]
        for key, rows in runs.items():
            colour, _, line = style.of_method(key[0])
            line = ":" if key[2] == "none" else line
            accuracies = [100 * float(row["accuracy"]) for row in rows]
            label = titled(*key).replace("`", "")
            axis.plot(accuracies, color=colour, linestyle=line, label=label)
        axis.axvline(BOARD, color="#808080", linewidth=0.8)
        axis.set_xlabel("round")
        axis.set_ylabel("accuracy, all clients, %")
        axis.legend(frameon=False)
        figure.savefig(folder / "long.png")
    return folder / "long.png"


def keys(e: Experiment) -> tuple[object, ...]:
    return e.method, e.flat().get("mu", ""), e.sharing, e.seed


def main() -> None:
    file, *given = sys.argv[1:]
    folders, target = [Path(folder) for folder in given], RESULTS / "start" / file
    if file == "rounds.csv":
        merged(target, (*KEYS, *OF_ROUND), (*KEYS, "round"), each_round(folders, keys))
    else:
        merged(target, COLUMNS, KEYS, counted(folders, keys))


if __name__ == "__main__":
    main()
