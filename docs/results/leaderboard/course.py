"""Accuracy in the course of training, with and without sharing, and at equal operations, from a
comparison's runs.

    python docs/results/leaderboard/course.py runs/quick-leaderboard

Writes two files beside this one. course.csv, a row a method, control and round: the mean over the
seeds of the accuracy of all clients, in percent, and of its difference to Standalone's of the same
seed, in points. operations.csv, a row a run: the last round up to which its clients have executed
no more operations than Standalone's in the whole run of that seed, and there its accuracy minus
Standalone's at the end. Then, and without a folder this alone, from the files here: sharing.csv, of
runs.csv (of the folder's report, copied here) the methods that have a control, with their
differences paired by seed; and sharing-course.png, of course.csv."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean

from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import measures, style, words
from pfedlora_flwr.report.gain_figure import LOOKS
from pfedlora_flwr.runs.completed import completed_runs
from pfedlora_flwr.runs.rows import RoundRow

EVERY = 10
HERE = Path(__file__).parent
PAIRS = (("mean", "none"), ("mean", "start"), ("none", "Standalone"), ("start", "Standalone"))
Runs = Mapping[str, Mapping[int, list[RoundRow]]]
"""By method and seed, a run's rounds."""


def main() -> None:
    if len(sys.argv) > 1:
        found = {kind: runs_of(Path(sys.argv[1]) / f"sharing-{kind}") for kind in LOOKS}
        alone = found["mean"].get("standalone") or sys.exit(
            f"{sys.argv[1]} has no completed run of Standalone with sharing=mean"
        )
        write(
            "course.csv",
            ("sharing", "method", "seeds", "round", "accuracy", "minus_standalone"),
            course(found, alone),
        )
        write(
            "operations.csv",
            ("method", "seed", "round", "minus_standalone"),
            at_equal_operations(found["mean"], alone),
        )
    write("sharing.csv", ("accuracy", "method", *LOOKS, *(f"{a} − {b}" for a, b in PAIRS)), gains())
    draw()


def runs_of(folder: Path) -> Runs:
    runs: dict[str, dict[int, list[RoundRow]]] = {}
    for run in completed_runs(folder):
        runs.setdefault(run.experiment.method, {})[run.experiment.seed] = run.rounds
    return runs


def course(
    found: Mapping[str, Runs], alone: Mapping[int, list[RoundRow]]
) -> Iterable[Sequence[object]]:
    for kind, runs in found.items():
        for method, seeds in runs.items():
            for t in range(EVERY, len(next(iter(seeds.values()))), EVERY):
                there = {seed: 100 * rows[t]["accuracy"] for seed, rows in seeds.items()}
                gained = mean(
                    accuracy - 100 * alone[seed][t]["accuracy"] for seed, accuracy in there.items()
                )
                yield kind, method, len(seeds), t, f"{mean(there.values()):.2f}", f"{gained:+.2f}"


def at_equal_operations(
    runs: Runs, alone: Mapping[int, list[RoundRow]]
) -> Iterable[Sequence[object]]:
    for method, seeds in runs.items():
        for seed, rows in seeds.items():
            most = sum(row["flops"] for row in alone[seed])
            last = measures.last_within(rows, most)
            yield (
                method,
                seed,
                last,
                f"{100 * (rows[last]['accuracy'] - alone[seed][-1]['accuracy']):+.2f}",
            )


def gains() -> Iterable[Sequence[object]]:
    rows = list(csv.DictReader((HERE / "runs.csv").open()))
    for count in ("at_best_validation", "final"):
        for method in controlled(rows):
            of = {
                kind: {
                    r["seed"]: float(r[count])
                    for r in rows
                    if (r["sharing"], r["method"]) == (kind, method)
                }
                for kind in LOOKS
            }
            of["Standalone"] = {
                r["seed"]: float(r[count]) for r in rows if r["method"] == "standalone"
            }
            cells = [words.percent(measures.estimate(list(of[kind].values()))) for kind in LOOKS]
            yield (
                count,
                method,
                *cells,
                *(words.percent(measures.difference(of[a], of[b]), sign=True) for a, b in PAIRS),
            )


def controlled(rows: list[dict[str, str]]) -> list[str]:
    """The methods of which there is a control."""
    return [
        name
        for name in registry.NAMES
        if any(row["method"] == name and row["sharing"] != "mean" for row in rows)
    ]


def write(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with (HERE / name).open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def draw() -> None:
    """A panel a method that has a control: it and its controls minus Standalone, against rounds."""
    rows = list(csv.DictReader((HERE / "course.csv").open()))
    methods = controlled(rows)
    with style.drawing(1, len(methods), (1 + 2.4 * len(methods), 2.2), sharey=True) as (
        figure,
        axes,
    ):
        for axis, method in zip(axes.flat, methods, strict=True):
            axis.axhline(0, color="#808080", linewidth=0.8)
            for kind, (colour, marker) in LOOKS.items():
                line = [
                    (int(r["round"]), float(r["minus_standalone"]))
                    for r in rows
                    if (r["method"], r["sharing"]) == (method, kind)
                ]
                if line:
                    axis.plot(
                        *zip(*line, strict=True),
                        color=colour,
                        marker=marker,
                        label="as it is" if kind == "mean" else f"sharing={kind}",
                    )
            axis.set_title(registry.title(method))
            axis.set_xlabel("round")
            axis.legend(frameon=False)
        axes[0][0].set_ylabel("points, minus Standalone")
        figure.savefig(HERE / "sharing-course.png")


if __name__ == "__main__":
    main()
