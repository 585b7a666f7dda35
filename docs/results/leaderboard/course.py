"""Accuracy in the course of training, from a comparison's runs.

    python docs/results/leaderboard/course.py runs/quick-leaderboard > docs/results/leaderboard/course.csv

A row a method and round: the mean over the seeds of the accuracy of all clients, in percent, and of its difference to Standalone's of the
same seed, in points. Only seeds count whose runs, Standalone's too, are completed.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from statistics import mean

EVERY = 10


def main() -> None:
    folder = Path(sys.argv[1]) / "sharing-mean"
    runs: dict[str, dict[str, list[float]]] = {}
    for result in sorted(folder.glob("*/seed-*/result.json")):
        if json.loads(result.read_text())["status"] == "completed":
            rows = map(json.loads, (result.parent / "rounds.jsonl").read_text().splitlines())
            runs.setdefault(result.parent.parent.name, {})[result.parent.name] = [100 * row["accuracy"] for row in rows]
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(("method", "seeds", "round", "accuracy", "minus_standalone"))
    alone = runs["standalone"]
    for method, seeds in runs.items():
        common = [seed for seed in seeds if seed in alone]
        for t in range(EVERY, len(next(iter(seeds.values()))), EVERY):
            gained = mean(seeds[seed][t] - alone[seed][t] for seed in common)
            table.writerow((method, len(common), t, f"{mean(seeds[seed][t] for seed in common):.2f}", f"{gained:+.2f}"))


if __name__ == "__main__":
    main()
