"""pFedLoRA at other values of μ and h, as it is, without sharing and minus Standalone, paired by
seed.

    python docs/results/sensitivity/points.py runs/benchmarks-sensitivity
    runs/benchmarks-gain-standalone runs/leaderboard-mu0.9

With folders it first writes points.csv beside this file, a row a run: accuracies in [0, 1]; of the
clients' first, second and third visits the mean accuracy right after them, and how many of them
blew up: ended with a mean loss of phase 2's last epoch that is above ln 100, that of guessing, or
no number; and operations.csv, of the runs of 60 rounds the last one up to which no more operations
were executed than in Standalone's whole run of that seed on the leaderboard, with its accuracy
there minus Standalone's at the end, in points. Then, and without folders this alone, from
points.csv and, at 60 rounds, the leaderboard's runs.csv: differences.csv, a row a quantity, in
percent or points, with the half-width of its 95 % t-interval over the seeds, by itself and as one
of three, and each seed's; and sensitivity.png."""

from __future__ import annotations

import csv
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from scipy.stats import t as student

from pfedlora_flwr.report import measures, style
from pfedlora_flwr.report.gain_figure import LOOKS
from pfedlora_flwr.report.measures import Estimate
from pfedlora_flwr.runs.completed import Run, completed_runs

HERE = Path(__file__).parent
KEYS = ("method", "rounds", "mu", "adapter.hidden-dim", "sharing", "seed")
COUNTS = ("at_best_validation", "final", "sampled_last", "sampled_highest")
VISITS = (1, 2, 3)
AFTER = tuple(f"after_visit_{n}" for n in VISITS)
DEFAULTS = ("0.5", "60")
TESTS = 3
Point = tuple[str, str, str]
"""Rounds, μ and h, as the tables write them."""
By = dict[str, float]
"""By seed."""


def main() -> None:
    if len(sys.argv) > 1:
        runs = [run for folder in sys.argv[1:] for run in completed_runs(Path(folder))]
        write(
            "points.csv",
            (*KEYS, *COUNTS, *AFTER, *(f"blew_up_{n}" for n in VISITS), "blew_up", "visits"),
            map(row, runs),
        )
        write("operations.csv", (*KEYS, "round", "minus_standalone"), at_equal_operations(runs))
    table = Table()
    header = (
        "accuracy",
        "rounds",
        "mu",
        "adapter.hidden-dim",
        "what",
        "mean",
        "half",
        f"half, of {TESTS}",
        "seeds",
    )
    write("differences.csv", header, table.rows())
    draw(table)


def row(run: Run) -> Sequence[object]:
    keys, accuracy = run.experiment.flat(), dict(run.result["accuracy"])
    seen: Counter[int] = Counter()
    after: dict[int, list[float]] = {}
    blew_up: Counter[int] = Counter()
    for visit in run.directory.visits():
        if visit["status"] == "ok":
            seen[visit["client"]] += 1
            n = seen[visit["client"]]
            after.setdefault(n, []).append(visit["accuracy"])
            blew_up[n] += not (visit["losses"] or {}).get("adapter", 0) <= math.log(100)
    what = (*(keys.get(key, "") for key in KEYS), *(accuracy[count] for count in COUNTS))
    return (
        *what,
        *(fmean(after[n]) for n in VISITS),
        *(blew_up[n] for n in VISITS),
        blew_up.total(),
        seen.total(),
    )


def at_equal_operations(runs: Sequence[Run]) -> Iterable[Sequence[object]]:
    alone = {r["seed"]: r for r in leaderboard() if r["method"] == "standalone"}
    for run in runs:
        keys = run.experiment.flat()
        if keys["rounds"] == 60:
            theirs = alone[str(keys["seed"])]
            last = measures.last_within(run.rounds, float(theirs["flops"]))
            yield (
                *(keys[key] for key in KEYS),
                last,
                f"{100 * (run.rounds[last]['accuracy'] - float(theirs['final'])):+.2f}",
            )


def leaderboard() -> list[dict[str, str]]:
    return list(csv.DictReader((HERE.parent / "leaderboard" / "runs.csv").open()))


class Table:
    """The runs of points.csv and, at 60 rounds, of the leaderboard."""

    def __init__(self) -> None:
        self.runs = list(csv.DictReader((HERE / "points.csv").open()))
        for r in leaderboard():
            ours = dict(
                zip(
                    ("mu", "adapter.hidden-dim"),
                    DEFAULTS if r["method"] == "pfedlora" else ("", ""),
                    strict=True,
                )
            )
            self.runs.append({"rounds": "60", **ours, **r})
        points = {
            (r["rounds"], r["mu"], r["adapter.hidden-dim"])
            for r in self.runs
            if r["method"] == "pfedlora"
        }
        self.points: list[Point] = sorted(points, key=lambda point: tuple(map(float, point)))

    def accuracies(
        self, count: str, method: str, sharing: str, rounds: str, mu: str = "", h: str = ""
    ) -> By:
        wanted = dict(zip(KEYS, (method, rounds, mu, h, sharing), strict=False))
        return {
            r["seed"]: float(r[count])
            for r in self.runs
            if all(r[k] == v for k, v in wanted.items()) and r.get(count)
        }

    def estimates(self, count: str, point: Point) -> dict[str, Estimate | None]:
        rounds, *options = point
        mean, none = (
            self.accuracies(count, "pfedlora", sharing, rounds, *options)
            for sharing in ("mean", "none")
        )
        alone = self.accuracies(count, "standalone", "mean", rounds)
        if not mean.keys() <= alone.keys():
            sys.exit(
                f"Standalone's seeds at {rounds} rounds are {sorted(alone)}, of μ, h = {options}"
                f" there are {sorted(mean)}; run them"
            )
        alone = {seed: alone[seed] for seed in mean}
        usual = (
            self.accuracies(count, "pfedlora", "mean", rounds, *DEFAULTS)
            if tuple(options) != DEFAULTS
            else {}
        )
        return {
            "mean": measures.estimate(list(mean.values())),
            "none": measures.estimate(list(none.values())),
            "Standalone": measures.estimate(list(alone.values())),
            "mean − none": measures.difference(mean, none),
            "mean − Standalone": measures.difference(mean, alone),
            "none − Standalone": measures.difference(none, alone),
            "mean − mean at μ = 0.5, h = 60": measures.difference(mean, usual),
        }

    def rows(self) -> Iterable[Sequence[object]]:
        for count in (*COUNTS, *AFTER):
            # the leaderboard's visits are not kept
            points = [p for p in self.points if count in COUNTS or p[0] != "60"]
            for point in points:
                for what, e in self.estimates(count, point).items():
                    if e:
                        yield (
                            count,
                            *point,
                            what,
                            f"{100 * e.mean:.2f}",
                            *halves(e),
                            " ".join(f"{100 * v:.2f}" for v in e.values),
                        )


def halves(e: Estimate) -> list[str]:
    """The half-width of the interval by itself, and that of an interval that holds together with
    those of other such tests (Bonferroni)."""
    if e.half is None:
        return ["", ""]
    wider = student.ppf(1 - 0.025 / TESTS, len(e.values) - 1) / student.ppf(
        0.975, len(e.values) - 1
    )
    return [f"{100 * e.half:.2f}", f"{100 * e.half * wider:.2f}"]


def write(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with (HERE / name).open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def draw(table: Table) -> None:
    """Minus Standalone, at best validation: against μ in both settings, and against h."""
    panels = (
        (
            "30 rounds, h = 60",
            "μ",
            {float(p[1]): p for p in table.points if (p[0], p[2]) == ("30", DEFAULTS[1])},
        ),
        (
            "60 rounds, as on the leaderboard",
            "μ",
            {float(p[1]): p for p in table.points if (p[0], p[2]) == ("60", DEFAULTS[1])},
        ),
        (
            "30 rounds, μ = 0.5",
            "h",
            {float(p[2]): p for p in table.points if p[:2] == ("30", DEFAULTS[0])},
        ),
    )
    with style.drawing(1, len(panels), (7.4, 2.3), sharey=True) as (figure, axes):
        for axis, (title, name, at) in zip(axes.flat, panels, strict=True):
            axis.axhline(0, color="#808080", linewidth=0.8)
            for kind, label, aside in (("mean", "as it is", -0.01), ("none", "sharing=none", 0.01)):
                found = (
                    (x, table.estimates("at_best_validation", point)[f"{kind} − Standalone"])
                    for x, point in at.items()
                )
                bars = [
                    (x + aside * (max(at) - min(at)), 100 * e.mean, 100 * e.half)
                    for x, e in found
                    if e and e.half is not None
                ]
                colour, marker = LOOKS[kind]
                if bars:
                    axis.errorbar(
                        *zip(*bars, strict=True),
                        color=colour,
                        marker=marker,
                        capsize=2,
                        label=label,
                    )
            axis.set(title=title, xlabel=name, xticks=list(at))
        axes[0][0].set_ylabel("points, minus Standalone")
        axes[0][0].legend(frameon=False)
        figure.savefig(HERE / "sensitivity.png")


if __name__ == "__main__":
    main()
