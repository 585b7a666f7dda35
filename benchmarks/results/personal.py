"""The personal baselines beside Standalone: runs.csv, of runs by `quick/personal`.

python -m benchmarks.results.personal FOLDER..."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.results.page import (
    RESULTS,
    Page,
    by_seed,
    completed,
    difference,
    estimate,
    percent,
    points,
    write_csv,
)
from pfedlora_flwr.methods import registry
from pfedlora_flwr.runs.result import best_round

KEYS = ("method", "sharing", "seed", "rounds")
COLUMNS = (*KEYS, "best_round", "at_best_validation", "final", "operations")
COUNT, NOT_RUN = "at_best_validation", "not run"
ROUNDS = (10, 20)
"""A run of twenty rounds has one of ten in it."""
TEST = 174
"""Test samples of all clients."""


def make(page: Page) -> None:
    rows = page.rows("runs.csv")
    lines = []
    for method in registry.ordered({row["method"] for row in rows}):
        cells = []
        for rounds in map(str, ROUNDS):
            alone, own = (
                by_seed(rows, COUNT, method=m, sharing="mean", rounds=rounds)
                for m in ("standalone", method)
            )
            cells += [percent(estimate(own)) if own else NOT_RUN]
            cells += [points(difference(own, alone)) if own and method != "standalone" else ""]
            page.says(*([estimate(own), difference(own, alone)] if own else []), seeds=True)
        counted = [
            by_seed(rows, "operations", method=m, sharing="mean", rounds="10")
            for m in (method, "standalone")
        ]
        work, unit = (sum(of.values()) / len(of) for of in counted)
        lines.append([registry.title(method), *cells, f"{work / unit:.2f}"])
    header = ("10 rounds", "− Standalone", "20 rounds", "− Standalone", "operations")
    page.table("methods", ("method", *header), lines)
    page.says(100 / TEST)


def joined(folders: Iterable[Path]) -> None:
    """Writes runs.csv of the completed runs in those folders."""
    found: dict[tuple[object, ...], list[object]] = {}
    for folder in folders:
        for run, _ in completed(folder):
            e, rows = run.experiment(), [*run.rounds()]
            for rounds in (n for n in ROUNDS if n <= e.rounds):
                until = [row for row in rows if row["round"] <= rounds]
                best = best_round(e, until)
                key = (e.method, e.sharing, e.seed, rounds)
                found[key] = [
                    *(*key, best["round"], best["accuracy"], until[-1]["accuracy"]),
                    sum(row["flops"] for row in until),
                ]
    write_csv(RESULTS / "personal" / "runs.csv", COLUMNS, [found[key] for key in sorted(found)])


if __name__ == "__main__":
    joined(map(Path, sys.argv[1:]))
