"""pFedLoRA at other values of μ and h, as it is, without sharing and minus Standalone, paired by seed.

    python docs/results/sensitivity/points.py runs/benchmarks-sensitivity runs/benchmarks-gain-standalone runs/leaderboard-mu0.9

With folders it first writes points.csv beside this file, a row a run: accuracies in [0, 1], and the visits after which the mean loss of
phase 2's last epoch is above ln 100, that of guessing, or no number. Then, and without folders this alone, from points.csv and, for μ = 0.5
and Standalone at 60 rounds, the leaderboard's runs.csv: differences.csv, in percent and points with 95 % t-intervals over the seeds, and
sensitivity.png.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pfedlora_flwr.report import measures, style, words
from pfedlora_flwr.report.gain_figure import LOOKS
from pfedlora_flwr.runs.completed import Run, read_run
from pfedlora_flwr.runs.directory import find_runs

HERE = Path(__file__).parent
COUNTS = ("at_best_validation", "final", "sampled_last", "sampled_highest")
COLUMNS = ("method", "rounds", "mu", "hidden-dim", "sharing", "seed", *COUNTS, "blew_up", "visits")
Row = dict[str, str]
Point = tuple[str, str, str]
"""Rounds, μ and h, as points.csv writes them."""
DEFAULTS = "0.5", "60"
STANDALONE = "Standalone"
USUAL = "mean at the defaults"
PAIRS = (("mean", "none"), ("mean", STANDALONE), ("none", STANDALONE), ("mean", USUAL))
HEADER = ("accuracy", "rounds", "mu", "hidden-dim", "mean", "none", STANDALONE, *(f"{a} − {b}" for a, b in PAIRS))


def main() -> None:
    if len(sys.argv) > 1:
        write("points.csv", COLUMNS, (row(run) for folder in sys.argv[1:] for run in runs_of(Path(folder))))
    found = by_point()
    write("differences.csv", HEADER, differences(found))
    draw(found)


def runs_of(folder: Path) -> list[Run]:
    return [run for directory in find_runs(folder) if isinstance(run := read_run(directory.path), Run)]


def row(run: Run) -> Sequence[object]:
    keys, accuracy = run.experiment.flat(), dict(run.result["accuracy"])
    visits = [visit["losses"] or {} for visit in run.directory.visits() if visit["status"] == "ok"]
    losses = [losses["adapter"] for losses in visits if "adapter" in losses]
    what = [keys.get(key, "") for key in ("method", "rounds", "mu", "adapter.hidden-dim", "sharing", "seed")]
    return *what, *(accuracy[count] for count in COUNTS), sum(not loss <= math.log(100) for loss in losses), len(losses)


def by_point() -> dict[str, dict[Point, dict[str, dict[str, float]]]]:
    """By count, point and who (a control, or Standalone): each seed's accuracy."""
    table = list(csv.DictReader((HERE / "points.csv").open()))
    leaderboard = [
        r for r in csv.DictReader((HERE.parent / "leaderboard" / "runs.csv").open()) if r["method"] in ("standalone", "pfedlora")
    ]
    table += [{"rounds": "60", "mu": DEFAULTS[0], "hidden-dim": DEFAULTS[1], **r} for r in leaderboard]
    points = dict.fromkeys((r["rounds"], r["mu"], r["hidden-dim"]) for r in table if r["method"] == "pfedlora")
    return {count: {point: of(table, point, count) for point in sorted(points, key=lambda p: tuple(map(float, p)))} for count in COUNTS}


def of(table: list[Row], point: Point, count: str) -> dict[str, dict[str, float]]:
    def accuracies(method: str, sharing: str, **keys: str) -> dict[str, float]:
        wanted = {"method": method, "sharing": sharing, "rounds": point[0], **keys}
        return {r["seed"]: float(r[count]) for r in table if all(r[key] == value for key, value in wanted.items())}

    here, usual = ({"mu": mu, "hidden-dim": h} for mu, h in (point[1:], DEFAULTS))
    found = {sharing: accuracies("pfedlora", sharing, **here) for sharing in ("mean", "none")}
    found[USUAL] = accuracies("pfedlora", "mean", **usual) if here != usual else {}
    alone = accuracies("standalone", "mean")
    return found | {STANDALONE: {seed: alone[seed] for seed in found["mean"] if seed in alone}}


def differences(found: dict[str, dict[Point, dict[str, dict[str, float]]]]) -> Iterable[Sequence[object]]:
    for count, points in found.items():
        for point, runs in points.items():
            own = (words.percent(measures.estimate(list(runs[who].values()))) for who in ("mean", "none", STANDALONE))
            yield count, *point, *own, *(words.percent(paired(runs, a, b), sign=True) for a, b in PAIRS)


def paired(runs: dict[str, dict[str, float]], a: str, b: str) -> measures.Estimate | None:
    return measures.estimate([runs[a][seed] - runs[b][seed] for seed in sorted(runs[a].keys() & runs[b].keys())])


def write(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with (HERE / name).open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def draw(found: dict[str, dict[Point, dict[str, dict[str, float]]]]) -> None:
    """Minus Standalone, at best validation: against μ in both settings, and against h."""
    points = found["at_best_validation"]
    panels = (
        ("30 rounds of 5 epochs", "μ", {float(p[1]): runs for p, runs in points.items() if (p[0], p[2]) == ("30", DEFAULTS[1])}),
        ("60 rounds of 10 epochs", "μ", {float(p[1]): runs for p, runs in points.items() if (p[0], p[2]) == ("60", DEFAULTS[1])}),
        ("30 rounds of 5 epochs", "h", {float(p[2]): runs for p, runs in points.items() if (p[0], p[1]) == ("30", DEFAULTS[0])}),
    )
    with style.drawing(1, len(panels), (7.4, 2.3), sharey=True) as (figure, axes):
        for axis, (title, name, at) in zip(axes.flat, panels, strict=True):
            axis.axhline(0, color="#808080", linewidth=0.8)
            for kind, label in (("mean", "as it is"), ("none", "sharing=none")):
                colour, marker = LOOKS[kind]
                bars: list[Any] = [
                    (x, e.mean, e.half) for x, runs in at.items() if (e := paired(runs, kind, STANDALONE)) and e.half is not None
                ]
                if bars:
                    x, y, half = (tuple(100 * v for v in column) if i else column for i, column in enumerate(zip(*bars, strict=True)))
                    axis.errorbar(x, y, half, color=colour, marker=marker, capsize=2, label=label)
            axis.set(title=title, xlabel=name, xticks=list(at))
        axes[0][0].set_ylabel("points, minus Standalone")
        axes[0][0].legend(frameon=False)
        figure.savefig(HERE / "sensitivity.png")


if __name__ == "__main__":
    main()
