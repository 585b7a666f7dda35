"""pFedLoRA at other values of μ and h, as it is, without sharing and minus Standalone, paired by
seed.

    python -m benchmarks.results.sensitivity runs/benchmarks-sensitivity \\
        runs/benchmarks-gain-standalone runs/leaderboard-mu0.9

writes points.csv, a row a run: accuracies in [0, 1]; of the clients' first, second and third visits
the mean accuracy right after them, and how many of them blew up: ended with a mean loss of phase
2's last epoch that is above ln 100, that of guessing, or no number; and operations.csv, of the runs
of 60 rounds the last one up to which no more operations were executed than in Standalone's whole
run of that seed on the leaderboard, with its accuracy there minus Standalone's at the end, in
points. The rest is made of points.csv and, at 60 rounds, the leaderboard's runs.csv:
differences.csv, a row a quantity, in percent or points, with the half-width of its 95 % t-interval
over the seeds, by itself and as one of three, and each seed's; sensitivity.png; the page."""

from __future__ import annotations

import csv
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.results.page import (
    RESULTS,
    Page,
    Row,
    bonferroni,
    by_seed,
    completed_runs,
    difference,
    estimate,
    percent,
    points,
    round_within,
    write_csv,
)
from pfedlora_flwr.report import measures, style
from pfedlora_flwr.report.gain_figure import LOOKS
from pfedlora_flwr.report.measures import Estimate
from pfedlora_flwr.runs.completed import Run

KEYS = ("method", "rounds", "mu", "adapter.hidden-dim", "sharing", "seed")
COUNTS = ("at_best_validation", "final", "sampled_last", "sampled_highest")
VISITS = (1, 2, 3)
AFTER = tuple(f"after_visit_{n}" for n in VISITS)
DEFAULTS = ("0.5", "60")
TESTS = 3
ALONE_BLEW_UP = "22"
"""At μ = 0.5 on the leaderboard without sharing: 8, 9 and 5. Those visits are not kept."""
WIDTHS = ("20", "40", "60", "80")
Point = tuple[str, str, str]
"""Rounds, μ and h, as the tables write them."""
By = dict[str, float]
"""By seed."""


def make(page: Page) -> None:
    theirs = list(csv.DictReader((page.folder.parent / "leaderboard" / "runs.csv").open()))
    table = Table(page.rows("points.csv"), theirs)
    header = ("accuracy", "rounds", "mu", "adapter.hidden-dim", "what", "mean", "half")
    page.csv("differences.csv", (*header, f"half, of {TESTS}", "seeds"), table.rows())
    page.picture("sensitivity.png", lambda folder: draw(table, folder))
    for rounds, name, mus in (
        ("30", "mu", ("0.5", "0.7", "0.9")),
        ("60", "longer", ("0.5", "0.9")),
    ):
        mu_table(page, table, rounds, name, mus)
    h_table(page, table)
    for mu in ("0.5", "0.7", "0.9"):
        for after in AFTER:
            gain = table.estimates(after, ("30", mu, "60"))["mean − none"]
            page.says(gain, bonferroni(gain, 3) if gain else None)
    for rounds in ("30", "60"):
        for count in COUNTS:
            mean, none = (
                {
                    mu: table.accuracies(count, "pfedlora", kind, rounds, mu, "60")
                    for mu in ("0.5", "0.9")
                }
                for kind in ("mean", "none")
            )
            page.says(difference(mean["0.9"], mean["0.5"]))
            gains = {mu: {s: mean[mu][s] - none[mu][s] for s in mean[mu]} for mu in mean}
            page.says(difference(gains["0.9"], gains["0.5"]))
    for sharing in ("mean", "none"):
        at = by_seed(page.rows("operations.csv"), "minus_standalone", mu="0.9", sharing=sharing)
        page.says(estimate({seed: value / 100 for seed, value in at.items()}))
    page.settings("0.5", "0.7", "0.9")


def mu_table(page: Page, table: Table, rounds: str, name: str, mus: Sequence[str]) -> None:
    count = COUNTS[0]
    lines = []
    for mu in mus:
        at = table.estimates(count, (rounds, mu, "60"))
        cells = [percent(at["mean"]), percent(at["none"])]
        gain, lead, deficit = (
            at[what] for what in ("mean − none", "mean − Standalone", "none − Standalone")
        )
        cells += [
            points(gain),
            points(lead),
            points(deficit),
        ]
        blew_up = [table.blew_up(rounds, mu, "60", kind) for kind in ("mean", "none")]
        lines.append([mu, *cells, *blew_up])
        for counted in COUNTS:
            at = table.estimates(counted, (rounds, mu, "60"))
            for what in ("mean − none", "mean − Standalone", "none − Standalone"):
                page.says(at[what], bonferroni(at[what], 3), bonferroni(at[what], 5))
            page.says(at["mean − Standalone"], seeds=True)
    alone = percent(table.estimates(count, (rounds, mus[0], "60"))["Standalone"])
    lines.insert(0, ["Standalone", alone, "", "", "", "", "", ""])
    header = ("μ", "as it is", "`sharing=none`", "gain from sharing", "as it is − Standalone")
    page.table(name, (*header, "none − Standalone", "blew up, as it is", "none"), lines)


def h_table(page: Page, table: Table) -> None:
    lines = []
    for h in WIDTHS:
        at = table.estimates(COUNTS[0], ("30", "0.5", h))
        own = "–"
        if h != "60":
            change = at["mean − mean at μ = 0.5, h = 60"]
            page.says(change, bonferroni(change, 3))
            own = points(change).replace("+0.00", "0.00").replace("−0.00", "0.00")
        numbers = f"{600 * int(h) + int(h) + 100:,}"  # 500 → h → 100 classes, and both biases
        cells = percent(at["mean"]), points(at["mean − Standalone"]), own, numbers
        lines.append([h, *cells, table.blew_up("30", "0.5", h, "mean")])
    for count in COUNTS:
        page.says(table.estimates(count, ("30", "0.5", "20"))["mean − mean at μ = 0.5, h = 60"])
    widths = (table.accuracies(COUNTS[0], "pfedlora", "mean", "30", "0.5", h) for h in ("40", "80"))
    page.says(measures.difference(*widths))
    header = ("h", "as it is", "− Standalone", "− h = 60", "numbers of one visit, each way")
    page.whole("h", (*header, "blew up"), lines)


def main() -> None:
    runs = [run for folder in sys.argv[1:] for run in completed_runs(Path(folder))]
    here = RESULTS / "sensitivity"
    header = (*KEYS, *COUNTS, *AFTER, *(f"blew_up_{n}" for n in VISITS), "blew_up", "visits")
    write_csv(here / "points.csv", header, map(row, runs))
    write_csv(
        here / "operations.csv", (*KEYS, "round", "minus_standalone"), at_equal_operations(runs)
    )


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
            last = round_within(run.rounds, float(theirs["flops"]))
            yield (
                *(keys[key] for key in KEYS),
                last,
                f"{100 * (run.rounds[last]['accuracy'] - float(theirs['final'])):+.2f}",
            )


def leaderboard() -> list[Row]:
    return list(csv.DictReader((RESULTS / "leaderboard" / "runs.csv").open()))


class Table:
    """The runs of points.csv and, at 60 rounds, of the leaderboard."""

    def __init__(self, ours: Sequence[Row], theirs: Sequence[Row]) -> None:
        self.runs = list(ours)
        for r in theirs:
            keys = DEFAULTS if r["method"] == "pfedlora" else ("", "")
            self.runs.append({"rounds": "60", "mu": keys[0], "adapter.hidden-dim": keys[1], **r})
        points = {
            (r["rounds"], r["mu"], r["adapter.hidden-dim"])
            for r in self.runs
            if r["method"] == "pfedlora"
        }
        self.points: list[Point] = sorted(points, key=lambda point: tuple(map(float, point)))

    def blew_up(self, rounds: str, mu: str, h: str, sharing: str) -> str:
        """Visits that blew up, in all seeds."""
        if (rounds, mu) == ("60", "0.5"):
            return ALONE_BLEW_UP if sharing == "none" else "not counted"
        wanted = dict(zip(KEYS, ("pfedlora", rounds, mu, h, sharing), strict=False))
        rows = [r for r in self.runs if all(r[k] == v for k, v in wanted.items())]
        return str(sum(int(r["blew_up"]) for r in rows))

    def accuracies(
        self, count: str, method: str, sharing: str, rounds: str, mu: str = "", h: str = ""
    ) -> By:
        wanted = dict(zip(KEYS, (method, rounds, mu, h, sharing), strict=False))
        return {
            r["seed"]: float(r[count])
            for r in self.runs
            if all(r[k] == v for k, v in wanted.items()) and r.get(count)
        }

    def estimates(self, count: str, point: Point) -> dict[str, Estimate]:
        """What there is of means and of differences paired by seed."""
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
        found = {
            "mean": measures.estimate(list(mean.values())),
            "none": measures.estimate(list(none.values())),
            "Standalone": measures.estimate(list(alone.values())),
            "mean − none": measures.difference(mean, none),
            "mean − Standalone": measures.difference(mean, alone),
            "none − Standalone": measures.difference(none, alone),
            "mean − mean at μ = 0.5, h = 60": measures.difference(mean, usual),
        }
        return {what: e for what, e in found.items() if e}

    def rows(self) -> Iterable[Sequence[object]]:
        for count in (*COUNTS, *AFTER):
            # the leaderboard's visits are not kept
            points = [p for p in self.points if count in COUNTS or p[0] != "60"]
            for point in points:
                for what, e in self.estimates(count, point).items():
                    seeds = " ".join(f"{100 * v:.2f}" for v in e.values)
                    yield count, *point, what, f"{100 * e.mean:.2f}", *halves(e), seeds


def halves(e: Estimate) -> list[str]:
    """The half-width of the interval by itself, and that of an interval that holds together with
    those of other such tests (Bonferroni)."""
    if e.half is None:
        return ["", ""]
    return [f"{100 * half:.2f}" for half in (e.half, bonferroni(e, TESTS).half or 0)]


def draw(table: Table, folder: Path) -> Path:
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
                    (x, table.estimates("at_best_validation", point).get(f"{kind} − Standalone"))
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
        figure.savefig(folder / "sensitivity.png")
    return folder / "sensitivity.png"


if __name__ == "__main__":
    main()
