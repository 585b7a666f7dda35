"""A common start: runs.csv, of comparisons by `benchmarks/start.yaml`. And a long training:
rounds.csv, a row a round, of comparisons by `quick/leaderboard` with more rounds; repeated.csv, of
a run that was done on two processors, has the rows of the other one.

    python -m benchmarks.results.start runs.csv|rounds.csv FOLDER..."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

from matplotlib.lines import Line2D

from benchmarks.results.page import (
    COUNTED,
    OF_ROUND,
    RESULTS,
    BySeed,
    Page,
    Row,
    by_seed,
    counted,
    difference,
    each_round,
    end_of,
    estimate,
    last_within,
    merged,
    percent,
    points,
    signed,
)
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import style
from pfedlora_flwr.report.paper import ACCURACY

KEYS = ("method", "mu", "sharing", "seed")
COLUMNS = (*KEYS, *COUNTED)
LONG_KEYS = (*KEYS, "precision")
COUNT = "at_best_validation"
EVERY = 30
SMOOTHED = 10
"""Rounds that a point of the lower panels is the mean of."""
BOARD = 60
"""The leaderboard's rounds."""
TOGETHER = 120
"""Rounds that every seed has."""
ROUNDS = 300
ALONE = ("standalone", "", "mean")
Long = tuple[str, str, str]
"""A run of one seed: its method, μ and sharing."""
Runs = dict[Long, list[Row]]
"""The rows of each, one a round."""
PAPER = ACCURACY["heterogeneous"]["cifar100"]


def make(page: Page) -> None:
    common_start(page)
    long(page)


def common_start(page: Page) -> None:
    rows = page.rows("runs.csv")
    alone = by_seed(rows, COUNT, method="standalone", sharing="mean")
    lines = [["Standalone", percent(estimate(alone)), "", "", "", ""]]
    for method in registry.ordered({row["method"] for row in rows} - {"standalone"}):
        for mu in sorted({row["mu"] for row in rows if row["method"] == method}):
            mean, none = (
                by_seed(rows, COUNT, method=method, mu=mu, sharing=kind)
                for kind in ("mean", "none")
            )
            lead = difference(mean, alone)
            page.says(estimate(mean), lead, seeds=True)
            cells = ["= Standalone", "", points(lead), ""]
            if none:
                gain, own = difference(mean, none), difference(none, alone)
                shown = points(gain)
                cells = [percent(estimate(none)), shown, points(lead), points(own)]
            lines.append([titled(method, mu), percent(estimate(mean)), *cells])
    header = ("with sharing", "`sharing=none`", "gain from sharing", "− Standalone")
    page.table("start", ("method", *header, "none − Standalone"), lines)
    page.settings("0.5", "0.9")
    page.quotes("sensitivity", "0.23 ± 1.22")


def long(page: Page) -> None:
    """Beyond the leaderboard's rounds, seed by seed: the end by all ways of counting, and the
    course."""
    found = long_runs(page)
    order = registry.ordered({method for runs in found.values() for method, _, _ in runs})
    seeds = {
        seed: {run: runs[run] for run in sorted(runs, key=lambda run: (order.index(run[0]), run))}
        for seed, runs in found.items()
    }
    lines, course = [], []
    for seed, runs in seeds.items():
        alone = runs[ALONE]
        ends = {run: [100 * value for value in end_of(rows)] for run, rows in runs.items()}
        named = f"{seed}, {alone[0]['precision']}"
        for run, rows in runs.items():
            if len(rows) == len(alone):
                cells = end_cells(page, run, ends, above_from(rows, alone))
                lines.append([named, alone[-1]["round"], *cells])
            others = None if run == ALONE else alone
            course.append([named, titled(*run), *apart(page, rows, others)])
            if (with_ := runs.get((*run[:2], "mean"))) and run[2] == "none":
                gain = f"{titled(*run[:2])}: gain from sharing"
                course.append([named, gain, *apart(page, with_, rows)])
        at_equal_operations(page, runs)
        repeated(page, runs)
        if ("pfedlora", "0.9", "mean") in runs:
            apart(page, runs["pfedlora", "0.5", "mean"], runs["pfedlora", "0.9", "mean"])
    header = ("all clients, at best validation", "− Standalone", "above it from round", "final")
    sampled = ("sampled, last round", "sampled, highest round", "the paper")
    page.whole("long", ("seed, precision", "rounds", "method", *header, *sampled), lines)
    marks = (f"{end - EVERY + 1} to {end}" for end in range(EVERY, ROUNDS + 1, EVERY))
    page.whole("course", ("seed, precision", "rounds", *marks), course)
    over_seeds(page, seeds)
    page.picture("long.png", lambda folder: draw(seeds, folder))


def over_seeds(page: Page, seeds: Mapping[str, Runs]) -> None:
    """What pFedLoRA leads Standalone by, with and without sharing, and what sharing gains: means
    over the seeds, of EVERY rounds each and at the best validation accuracy of TOGETHER."""
    ours = ("pfedlora", "0.5", "mean")
    runs = {"mean": ours, "none": (*ours[:2], "none"), "alone": ALONE}
    ends = [*range(EVERY, TOGETHER + 1, EVERY)]
    found: dict[str, list[BySeed]] = {
        name: [
            *(
                {seed: mean_of(of[run], end, EVERY) / 100 for seed, of in seeds.items()}
                for end in ends
            ),
            {seed: end_of(of[run][: TOGETHER + 1])[0] for seed, of in seeds.items()},
        ]
        for name, run in runs.items()
    }
    lines = []
    for title, one, other in (
        ("pFedLoRA − Standalone", "mean", "alone"),
        ("pFedLoRA, `sharing=none` − Standalone", "none", "alone"),
        ("gain from sharing", "mean", "none"),
    ):
        leads = [difference(*both) for both in zip(found[one], found[other], strict=True)]
        lines.append([title, *(points(each) for each in leads)])
    marks = (f"{end - EVERY + 1} to {end}" for end in ends)
    page.table("seeds", ("", *marks, f"at best validation of {TOGETHER} rounds"), lines)


def long_runs(page: Page, file: str = "rounds.csv") -> dict[str, Runs]:
    """By seed, whose runs share a precision."""
    found: dict[str, Runs] = {}
    for row in page.rows(file):
        run = row["method"], row["mu"], row["sharing"]
        found.setdefault(row["seed"], {}).setdefault(run, []).append(row)
    for seed, runs in found.items():
        precisions = {row["precision"] for rows in runs.values() for row in rows}
        assert len(precisions) == 1, f"seed {seed} has runs in {precisions}"
    return found


def repeated(page: Page, runs: Runs) -> None:
    """What another processor changes: EVERY rounds' means, and the gain from sharing in them."""
    for run, rows in long_runs(page, "repeated.csv").get(runs[ALONE][0]["seed"], {}).items():
        with_ = runs[*run[:2], "mean"]
        for end in range(EVERY, len(rows), EVERY):
            there = mean_of(rows, end, EVERY)
            page.says(mean_of(runs[run], end, EVERY) - there, mean_of(with_, end, EVERY) - there)


def end_cells(page: Page, run: Long, ends: Mapping[Long, list[float]], above: str) -> list[str]:
    """A run's line of the table of ends, after its seed."""
    leads = [one - other for one, other in zip(ends[run], ends[ALONE], strict=True)]
    first, *others = (f"{value:.2f}" for value in ends[run])
    lead = "" if run == ALONE else signed(leads[0])
    printed = PAPER[run[0]][-1] if run[0] in PAPER and run[2] == "mean" else None
    return [titled(*run), first, lead, above, *others, f"{printed:.2f}" if printed else ""]


def above_from(rows: list[Row], alone: list[Row]) -> str:
    """The round from which on a run is above Standalone in every one; empty where it is not."""
    if rows is alone:
        return ""
    below = [
        int(theirs["round"])
        for ours, theirs in zip(rows, alone, strict=True)
        if float(ours["accuracy"]) <= float(theirs["accuracy"])
    ]
    return "" if max(below) == int(alone[-1]["round"]) else str(max(below) + 1)


def apart(page: Page, rows: list[Row], others: list[Row] | None) -> list[str]:
    """Accuracies in percent, or their differences to others' in points, each the mean over EVERY
    rounds; empty where one of the two has ended before."""
    cells = []
    for end in range(EVERY, ROUNDS + 1, EVERY):
        if end >= min(len(rows), len(others or rows)):
            cells.append("")
            continue
        value = mean_of(rows, end, EVERY) - (mean_of(others, end, EVERY) if others else 0)
        page.says(value)
        cells.append(signed(value) if others else f"{value:.2f}")
    return cells


def mean_of(rows: Sequence[Row], end: int, count: int, column: str = "accuracy") -> float:
    """The mean of an accuracy in % over some rounds, of which `end` is the last."""
    return 100 * fmean(float(row[column]) for row in rows[end - count + 1 : end + 1])


@cache
def committed() -> dict[str, Runs]:
    """The long runs of this page, for others."""
    return long_runs(Page(RESULTS / "start"))


def leads_at_end(run: Long) -> tuple[float, float]:
    """A run minus Standalone in points, at the best validation accuracy and after the last round,
    with the one seed that has all rounds."""
    found = committed()["0"]
    whole = {method for (method, _, _), rows in found.items() if len(rows) == ROUNDS + 1}
    assert whole == {"pfedlora", "fedproto", "fedmrl", "standalone"}, "others were run, too"
    ours, alone = (end_of(found[each]) for each in (run, ALONE))
    return 100 * (ours[0] - alone[0]), 100 * (ours[1] - alone[1])


def times_standalone(seed: str, run: Long) -> float:
    """A run's operations of Standalone's, over as many rounds."""
    runs = committed()[seed]
    ours, alone = runs[run], runs[ALONE]
    return float(ours[-1]["operations"]) / float(alone[len(ours) - 1]["operations"])


def leads_within(rounds: int) -> dict[tuple[str, Long], float]:
    """Each run minus Standalone in points, by seed and run, both at the best validation accuracy of
    their first rounds."""
    ends = {
        (seed, run): 100 * end_of(rows[: rounds + 1])[0]
        for seed, runs in committed().items()
        for run, rows in runs.items()
    }
    return {(seed, run): end - ends[seed, ALONE] for (seed, run), end in ends.items()}


def shared_within(rounds: int, seed: str, method: str) -> float:
    """A method's gain from sharing in points, both at the best validation accuracy of their first
    rounds."""
    leads = leads_within(rounds)
    return leads[seed, (method, "", "mean")] - leads[seed, (method, "", "none")]


def at_equal_operations(page: Page, runs: Runs) -> None:
    """Where the others have executed Standalone's operations, their accuracy minus Standalone's
    at its end."""
    alone = runs[ALONE][-1]
    for key, rows in runs.items():
        page.says(float(rows[-1]["operations"]) / float(runs[ALONE][len(rows) - 1]["operations"]))
        there = last_within(rows, float(alone["operations"]))
        if key != ALONE and there is not rows[-1]:
            page.says(100 * (float(there["accuracy"]) - float(alone["accuracy"])))


def titled(method: str, mu: str, sharing: str = "mean") -> str:
    name = registry.title(method) + mu_of(mu)
    return name if sharing == "mean" else f"{name}, `sharing={sharing}`"


def mu_of(mu: str) -> str:
    return f", μ = {mu}" if mu else ""


def draw(seeds: Mapping[str, Runs], folder: Path) -> Path:
    """All clients' mean accuracy against rounds, and its difference to Standalone's, a column a
    seed, a line a run."""
    methods = {run[0] for runs in seeds.values() for run in runs}
    named = [method for method in registry.NAMES if method in methods]
    colours = dict(zip(named, style.OKABE_ITO, strict=False))
    shown: dict[str, Line2D] = {}
    size = 3.2 * len(seeds), 5.0
    with style.drawing(2, len(seeds), size, sharex="col", sharey="row") as (figure, axes):
        for column, (seed, runs) in enumerate(seeds.items()):
            for run, rows in runs.items():
                line = ":" if run[2] == "none" else "-." if run[1] == "0.9" else "-"
                look = {"color": colours[run[0]], "linestyle": line}
                accuracies = [100 * float(row["accuracy"]) for row in rows]
                label = titled(*run).replace("`", "")
                (shown[label],) = axes[0][column].plot(accuracies, **look)
                ends = range(SMOOTHED, min(len(rows), len(runs[ALONE])))
                leads = [
                    mean_of(rows, end, SMOOTHED) - mean_of(runs[ALONE], end, SMOOTHED)
                    for end in ends
                ]
                axes[1][column].plot(ends, leads, **look)
            for axis in axes[:, column]:
                axis.axvline(BOARD, color="#808080", linewidth=0.8)
            axes[0][column].set_title(f"seed {seed}")
            axes[1][column].set_xlabel("round")
        axes[0][0].set_ylabel("accuracy, all clients, %")
        axes[1][0].set_ylabel(f"− Standalone, points,\nmean of {SMOOTHED} rounds")
        figure.legend(shown.values(), [*shown], loc="outside lower center", ncols=2, frameon=False)
        figure.savefig(folder / "long.png")
    return folder / "long.png"


def keys(e: Experiment) -> tuple[object, ...]:
    return e.method, e.flat().get("mu", ""), e.sharing, e.seed


def main() -> None:
    file, *given = sys.argv[1:]
    folders, target = [Path(folder) for folder in given], RESULTS / "start" / file
    if file == "rounds.csv":
        rows = each_round(folders, lambda e: (*keys(e), e.precision))
        merged(target, (*LONG_KEYS, *OF_ROUND), (*LONG_KEYS, "round"), rows)
    else:
        merged(target, COLUMNS, KEYS, counted(folders, keys))


if __name__ == "__main__":
    main()
