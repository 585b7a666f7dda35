"""All methods on CIFAR-10, of the report's tables, and why FML falls behind.

    python -m benchmarks.results.methods_cifar10 'fml=runs/…/fml' 'fml sharing=none=runs/fml-none' …

writes why-fml.csv, a row a run and round, from those runs: the mean accuracy, and of the final
models the worst client's, in [0, 1]."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.results.page import RESULTS, Page, Row, minus, write_csv
from pfedlora_flwr.runs.completed import Run, read_run

RUNS = {
    "fml": "as it is: α = β = 0.5",
    "fml sharing=none": "`sharing=none`: its own small model, never averaged",
    "fml sharing=start": "`sharing=start`: the untrained small model at every visit",
    "fml fml.alpha=0.9": "`fml.alpha=0.9`: labels weigh 0.9, the small model 0.1",
    "standalone": "Standalone",
}
AFTER = ("1", "2", "4", "8", "12")


def make(page: Page) -> None:
    methods(page, "cifar10/", worst=True)
    why(page)
    final = {row["method"]: 100 * float(row["final"]) for row in page.rows("cifar10/runs.csv")}
    page.says(final["pfedlora"] - final["standalone"])
    page.settings("0.5", "0.9")


def methods(page: Page, folder: str, *, worst: bool) -> None:
    """A row a method: accuracy, what is sent and computed, and the CPU time of its training beside
    Standalone's."""
    of = {
        name: {row["method"]: row for row in page.rows(f"{folder}{name}.csv")}
        for name in ("accuracies", "costs")
    }
    spent = seconds(page.rows(f"{folder}training.csv"))
    lines = []
    for (method, row), run in zip(
        of["accuracies"].items(), page.rows(f"{folder}runs.csv"), strict=True
    ):
        cost = of["costs"][method]
        cells = [row["at best validation"], row["final"], *([row["worst client"]] if worst else [])]
        cells.append(minus(row["− Standalone, points"]))
        cells += [
            cost["whole run: parameters up"],
            cost["down"],
            cost["FLOP"],
            cost["FLOP, server"],
        ]
        lines.append([method, *cells, f"{spent[run['method']] / spent['standalone']:.2f}"])
    page.whole(
        "methods",
        (
            "method",
            "at best validation",
            "final",
            *(["worst client"] if worst else []),
            "− Standalone, points",
            "parameters up",
            "down",
            "operations, clients",
            "server",
            "CPU time of training",
        ),
        lines,
    )


def seconds(rows: Iterable[Row]) -> Mapping[str, float]:
    """By method the CPU seconds of a sample through each model, together."""
    found: dict[str, float] = {}
    for row in rows:
        found[row["method"]] = found.get(row["method"], 0) + 1 / float(
            row["samples per CPU second"]
        )
    return found


def why(page: Page) -> None:
    rows = page.rows("cifar10/why-fml.csv")
    at = {(row["run"], row["round"]): 100 * float(row["accuracy"]) for row in rows}
    worst = {row["run"]: 100 * float(row["worst client"]) for row in rows if row["worst client"]}
    lines = []
    for run, name in RUNS.items():
        course = ", ".join(f"{at[run, t]:.1f}" for t in AFTER)
        lines.append([name, f"{at[run, '12']:.2f}", f"{worst[run]:.2f}", course])
    header = ("FML", "after round 12", "worst client", f"accuracy after rounds {', '.join(AFTER)}")
    page.table("why-fml", header, lines)


def main() -> None:
    write_csv(
        RESULTS / "methods" / "cifar10" / "why-fml.csv",
        ("run", "round", "accuracy", "worst client"),
        gathered(named_runs(sys.argv[1:])),
    )


def named_runs(arguments: Sequence[str]) -> dict[str, Run]:
    """`NAME=RUN` as it is given to a gathering command: the name may hold `=`, the folder may not.

    Raises:
        SystemExit: a run is not completed.
    """
    found = {}
    for argument in arguments:
        name, _, folder = argument.rpartition("=")
        run = read_run(Path(folder))
        if not isinstance(run, Run):
            sys.exit(f"{folder} is not completed: {run.reason}")
        found[name] = run
    return found


def gathered(runs: Mapping[str, Run]) -> Iterable[Sequence[object]]:
    """A row a run and round; the worst client stands in the last round's."""
    for name, run in runs.items():
        for row in run.rounds:
            last = row is run.rounds[-1]
            worst = f"{min(run.clients.values()):.4f}" if last else ""
            yield name, row["round"], f"{row['accuracy']:.6f}", worst


if __name__ == "__main__":
    main()
