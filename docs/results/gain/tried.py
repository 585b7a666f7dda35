"""Every variant that a comparison tried, as it is and without sharing, in the order of the
comparison.

    python docs/results/gain/tried.py runs/benchmarks-gain

Writes tried.csv beside this file, a row a variant: accuracies in percent at the round of the best
validation accuracy, and their difference, in points. Empty where there is no such run; why a run is
not completed stands in the last column."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from pfedlora_flwr.comparison.spec import Comparison
from pfedlora_flwr.runs.completed import Missing, Run, read_run
from pfedlora_flwr.runs.directory import find_runs

HERE = Path(__file__).parent
KINDS = ("mean", "none")


def main() -> None:
    found: dict[str, dict[str, Run | Missing]] = {}
    for directory in find_runs(Path(sys.argv[1])):
        e = directory.experiment()
        found.setdefault(e.method_options, {})[e.sharing] = read_run(directory.path)
    with (HERE / "tried.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(
            [
                "method-options",
                *(
                    f"{kind}, {count}"
                    for count in ("validation", "test")
                    for kind in (*KINDS, "gain")
                ),
                "failed",
            ]
        )
        for options in order():
            read = found.get(options, {})
            runs = {kind: run for kind, run in read.items() if isinstance(run, Run)}
            cells = [
                *told({kind: run.validation for kind, run in runs.items()}),
                *told({kind: run.accuracy for kind, run in runs.items()}),
            ]
            rows.writerow(
                [
                    options,
                    *cells,
                    "; ".join(
                        f"{kind}: {run.reason}"
                        for kind, run in read.items()
                        if isinstance(run, Missing)
                    ),
                ]
            )


def order() -> list[str]:
    """The variants, as the comparison lists them."""
    cells = Comparison.load(HERE.parents[2] / "benchmarks" / "gain.yaml").cells()
    return list(dict.fromkeys(str(cell.scenario["method-options"]) for cell in cells))


def told(values: dict[str, float]) -> list[str]:
    gain = f"{100 * (values['mean'] - values['none']):+.2f}" if len(values) == len(KINDS) else ""
    return [*(f"{100 * values[kind]:.2f}" if kind in values else "" for kind in KINDS), gain]


if __name__ == "__main__":
    main()
