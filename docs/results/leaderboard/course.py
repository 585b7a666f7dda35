"""Accuracy in the course of training, and at equal operations, from a comparison's runs.

    python docs/results/leaderboard/course.py runs/quick-leaderboard

Writes two files beside this one. course.csv, a row a method and round: the mean over the seeds of the accuracy of all clients, in percent,
and of its difference to Standalone's of the same seed, in points. operations.csv, a row a run: the last round up to which its clients have
executed no more operations than Standalone's in the whole run of that seed, and there its accuracy minus Standalone's at the end.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import mean

EVERY = 10
Rows = list[dict[str, float]]


def main() -> None:
    runs: dict[str, dict[str, Rows]] = {}
    for result in sorted((Path(sys.argv[1]) / "sharing-mean").glob("*/seed-*/result.json")):
        if json.loads(result.read_text())["status"] == "completed":
            rows = [json.loads(line) for line in (result.parent / "rounds.jsonl").read_text().splitlines()]
            runs.setdefault(result.parent.parent.name, {})[result.parent.name] = rows
    write("course.csv", ("method", "seeds", "round", "accuracy", "minus_standalone"), course(runs))
    write("operations.csv", ("method", "seed", "round", "minus_standalone"), at_equal_operations(runs))


def course(runs: dict[str, dict[str, Rows]]) -> Iterable[Sequence[object]]:
    for method, seeds in runs.items():
        for t in range(EVERY, len(next(iter(seeds.values()))), EVERY):
            there = {seed: 100 * rows[t]["accuracy"] for seed, rows in seeds.items()}
            gained = mean(accuracy - 100 * runs["standalone"][seed][t]["accuracy"] for seed, accuracy in there.items())
            yield method, len(seeds), t, f"{mean(there.values()):.2f}", f"{gained:+.2f}"


def at_equal_operations(runs: dict[str, dict[str, Rows]]) -> Iterable[Sequence[object]]:
    for method, seeds in runs.items():
        for seed, rows in seeds.items():
            alone = runs["standalone"][seed]
            most = sum(row["flops"] for row in alone)
            last = max(t for t, spent in enumerate(accumulate(row["flops"] for row in rows)) if spent <= most)
            yield method, seed.removeprefix("seed-"), last, f"{100 * (rows[last]['accuracy'] - alone[-1]['accuracy']):+.2f}"


def write(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with (Path(__file__).parent / name).open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


if __name__ == "__main__":
    main()
