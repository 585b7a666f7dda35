"""The confirmed variants beside themselves without sharing and beside Standalone, paired by seed.

    python docs/results/gain/confirmed.py runs/benchmarks-gain-confirm
    runs/benchmarks-gain-standalone

Writes confirmed.csv beside this file, a row a variant, control and seed: test accuracies at the
round of the best validation accuracy and after the last round, and that validation accuracy, in
percent. Prints the first's means, differences and their 95 % t-intervals."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from pfedlora_flwr.report import measures, words
from pfedlora_flwr.runs.completed import Run, completed_runs

ALONE = ("standalone", "mean")


def main() -> None:
    found: dict[tuple[str, str], dict[int, Run]] = {}
    for run in (run for folder in sys.argv[1:] for run in completed_runs(Path(folder))):
        e = run.experiment
        found.setdefault((e.method_options or e.method, e.sharing), {})[e.seed] = run
    with (Path(__file__).parent / "confirmed.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            ["variant", "sharing", "seed", "at best validation", "final", "validation, best"]
        )
        for who, runs in found.items():
            for seed, run in runs.items():
                accuracies = run.accuracy, run.rounds[-1]["accuracy"], run.validation
                table.writerow([*who, seed, *(f"{100 * accuracy:.4f}" for accuracy in accuracies)])
    for options in sorted({name for name, _ in found} - {"standalone"}):
        mean, none, alone = found[options, "mean"], found[options, "none"], found.get(ALONE, {})
        differences = (
            measures.paired(a, b) for a, b in ((mean, none), (mean, alone), (none, alone))
        )
        own = measures.estimate([run.accuracy for run in mean.values()])
        print(
            options,
            words.percent(own),
            *(f"{words.percent(d, sign=True)} {by_seed(d)}" for d in differences),
            sep=" | ",
        )


def by_seed(difference: measures.Estimate | None) -> str:
    return (
        f"({', '.join(f'{100 * value:+.2f}' for value in difference.values)})" if difference else ""
    )


if __name__ == "__main__":
    main()
