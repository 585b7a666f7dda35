"""Every variant that a comparison tried, as it is and without sharing, in the order of the comparison.

    python docs/results/gain/tried.py runs/gain

Writes tried.csv beside this file, a row a variant: accuracies in percent at the round of the best validation accuracy, and their
difference, in points. Empty where there is no such run; what a run that failed said stands in the last column.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).parent
KINDS = ("mean", "none")
COUNTS = ("validation_accuracy", "accuracy")


def main() -> None:
    found: dict[str, dict[str, Path]] = {}
    for result in Path(sys.argv[1]).glob("**/seed-*/result.json"):
        keys = yaml.safe_load((result.parent / "config.yaml").read_text())
        found.setdefault(keys["method-options"], {})[keys.get("sharing", "mean")] = result
    order = yaml.safe_load((HERE.parents[2] / "benchmarks" / "gain.yaml").read_text())["axes"]["method-options"]
    with (HERE / "tried.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["method-options", *(f"{kind}, {count}" for count in ("validation", "test") for kind in (*KINDS, "gain")), "failed"])
        for options in order:
            best = {kind: at_best_validation(result) for kind, result in found.get(options, {}).items()}
            cells = [cell for count in COUNTS for cell in told({kind: row[count] for kind, row in best.items() if row})]
            rows.writerow([options, *cells, "; ".join(f"{kind}: {why}" for kind, why in failures(found.get(options, {})))])


def at_best_validation(result: Path) -> dict[str, float] | None:
    """The round of a completed run, of ties the first."""
    if json.loads(result.read_text())["status"] != "completed":
        return None
    rows = [json.loads(line) for line in (result.parent / "rounds.jsonl").read_text().splitlines()]
    return max(rows, key=lambda row: row["validation_accuracy"])


def told(values: dict[str, float]) -> list[str]:
    gain = f"{100 * (values['mean'] - values['none']):+.2f}" if len(values) == len(KINDS) else ""
    return [*(f"{100 * values[kind]:.2f}" if kind in values else "" for kind in KINDS), gain]


def failures(results: dict[str, Path]) -> list[tuple[str, str]]:
    read = {kind: json.loads(result.read_text()) for kind, result in results.items()}
    return [(kind, str(result.get("error", result["status"]))) for kind, result in read.items() if result["status"] != "completed"]


if __name__ == "__main__":
    main()
