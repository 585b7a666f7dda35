"""The confirmed variants beside themselves without sharing and beside Standalone, paired by seed.

    python docs/results/gain/confirmed.py runs/benchmarks-gain-confirm runs/benchmarks-gain-standalone

Writes confirmed.csv beside this file, a row a variant, control and seed, and prints means with their 95 % t-intervals. Test accuracies at
the round of the best validation accuracy and after the last round, and that validation accuracy, in percent.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from pfedlora_flwr.report import measures, words

COUNTS = ("best", "final", "validation")
Accuracies = Mapping[str, float]
"""By seed."""


def main() -> None:
    found: dict[str, dict[tuple[str, str], dict[str, float]]] = {count: {} for count in COUNTS}
    for folder in sys.argv[1:]:
        for result in sorted(Path(folder).glob("**/seed-*/result.json")):
            if json.loads(result.read_text())["status"] != "completed":
                continue
            keys = yaml.safe_load((result.parent / "config.yaml").read_text())
            rows = [json.loads(line) for line in (result.parent / "rounds.jsonl").read_text().splitlines()]
            best = max(rows, key=lambda row: row["validation_accuracy"])
            who = (keys["method-options"] or "standalone", keys["sharing"])
            for count, accuracy in zip(COUNTS, (best["accuracy"], rows[-1]["accuracy"], best["validation_accuracy"]), strict=True):
                found[count].setdefault(who, {})[str(keys["seed"])] = accuracy
    with (Path(__file__).parent / "confirmed.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["variant", "sharing", "seed", "at best validation", "final", "validation, best"])
        table.writerows(
            [*who, seed, *(f"{100 * found[count][who][seed]:.4f}" for count in COUNTS)]
            for who, seeds in found["best"].items()
            for seed in seeds
        )
    for count, runs in found.items():
        for options in sorted({name for name, _ in runs} - {"standalone"}):
            mean, none, alone = runs[options, "mean"], runs[options, "none"], runs.get(("standalone", "mean"), {})
            differences = [paired(a, b) for a, b in ((mean, none), (mean, alone), (none, alone))]
            print(count, options, words.percent(measures.estimate(list(mean.values()))), *differences, sep=" | ")


def paired(ours: Accuracies, theirs: Accuracies) -> str:
    seeds = sorted(ours.keys() & theirs.keys())
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    return f"{words.percent(measures.estimate(differences), sign=True)} ({', '.join(f'{100 * d:+.2f}' for d in differences)})"


if __name__ == "__main__":
    main()
