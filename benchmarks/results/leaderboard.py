"""The leaderboard: accuracy, its course, what sharing gives, costs, and accuracy at equal
operations.

    python -m benchmarks.results.leaderboard runs/quick-leaderboard

writes, of a comparison's runs, course.csv, a row a method, control and round: the mean over the
seeds of the accuracy of all clients, in percent, and of its difference to Standalone's of the same
seed, in points; and operations.csv, a row a run: the last round up to which its clients have
executed no more operations than Standalone's in the whole run of that seed, and there its accuracy
minus Standalone's at the end. The rest is of runs.csv, of the folder's report."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean

from benchmarks.results.page import (
    RESULTS,
    Page,
    Row,
    bonferroni,
    by_seed,
    completed_runs,
    difference,
    estimate,
    minus,
    percent,
    points,
    round_within,
    signed,
    write_csv,
)
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import measures, style, words
from pfedlora_flwr.report.gain_figure import LOOKS
from pfedlora_flwr.runs.rows import RoundRow

EVERY = 10
METHODS = ("standalone", "lg_fedavg", "fd", "fedproto", "fedmrl", "pfedmoe", "pfedlora")
CONTROLLED = ("lg_fedavg", "fedproto", "fedmrl", "pfedmoe", "pfedlora")
"""Methods that ran with `sharing=none`, all seeds."""
PAIRS = (("mean", "none"), ("mean", "start"), ("none", "Standalone"), ("start", "Standalone"))
COUNTS = ("at_best_validation", "final", "sampled_last", "sampled_highest")
Runs = Mapping[str, Mapping[int, list[RoundRow]]]
"""By method and seed, a run's rounds."""


def make(page: Page) -> None:
    runs = page.rows("runs.csv")
    accuracy(page, runs)
    course_table(page)
    sharing(page, runs)
    costs(page)
    page.picture("sharing-course.png", lambda folder: draw(page.rows("course.csv"), folder))


def accuracy(page: Page, runs: Sequence[Row]) -> None:
    paper = {row["method"]: row["the paper prints"] for row in page.rows("sampled.csv")}
    of = {m: {c: by_seed(runs, c, method=m, sharing="mean") for c in COUNTS} for m in METHODS}
    lines = []
    for method, counts in of.items():
        best, final, last, highest = (percent(estimate(counts[count])) for count in COUNTS)
        lead = "–" if method == "standalone" else ahead(of, method)
        worst = estimate(by_seed(runs, "worst", method=method, sharing="mean"))
        shown = f"{100 * worst.mean:.2f}" if worst.half else percent(worst)
        printed = paper[registry.title(method)].replace("-", "fails")
        lines.append([named(method, counts), best, lead, final, shown, last, highest, printed])
    page.table(
        "accuracy",
        (
            "method",
            "all clients, at best validation",
            "− Standalone, points",
            "all clients, final",
            "worst client",
            "sampled, last round",
            "sampled, highest round",
            "the paper",
        ),
        lines,
    )
    sampled(page, of)
    for count in COUNTS:
        alone = of["standalone"][count]
        leads = [difference(of[m][count], alone) for m in METHODS[1:]]
        page.says(*leads, *(bonferroni(lead, len(leads)) for lead in leads))
        page.says(difference(of["pfedlora"][count], alone), seeds=True)
    for a, b in (
        ("fedmrl", "fedproto"),
        ("fedproto", "fd"),
        ("fedproto", "lg_fedavg"),
        ("fedproto", "pfedlora"),
        ("pfedmoe", "fd"),
        ("pfedmoe", "fedproto"),
        ("pfedmoe", "fedmrl"),
    ):
        page.says(difference(of[a][COUNTS[0]], of[b][COUNTS[0]]))
    page.settings("0.5", "0.9", "0.01")
    page.quotes("sensitivity", "0.24 ± 0.40", "0.34 ± 0.23", "1.10 ± 0.41")
    page.quotes("start", "0.58")


def sampled(page: Page, of: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Differences to Standalone by the clients that a round has sampled."""
    lines = []
    for method in METHODS[1:]:
        found = (difference(of[method][c], of["standalone"][c]) for c in COUNTS[2:])
        lines.append([named(method, of[method]), *(points(e) for e in found)])
    page.whole("sampled", ("− Standalone, points", "last round", "highest round"), lines)


def ahead(of: Mapping[str, Mapping[str, Mapping[str, float]]], method: str) -> str:
    count = COUNTS[0]
    return points(difference(of[method][count], of["standalone"][count]))


def named(method: str, counts: Mapping[str, Mapping[str, float]]) -> str:
    seeds = len(counts[COUNTS[0]])
    return registry.title(method) + (" (two seeds)" if seeds == 2 else "")


def course_table(page: Page) -> None:
    rows = [row for row in page.rows("course.csv") if row["sharing"] == "mean"]
    rounds = sorted({int(row["round"]) for row in rows})
    lines = []
    for method in METHODS:
        at = {int(row["round"]): row for row in rows if row["method"] == method}
        column = "accuracy" if method == "standalone" else "minus_standalone"
        seeds = " (two seeds)" if at[rounds[0]]["seeds"] == "2" else ""
        cells = [minus(at[t][column]) for t in rounds]
        lines.append([registry.title(method) + seeds, *cells])
    page.whole("course", ("round", *map(str, rounds)), lines)


def sharing(page: Page, runs: Sequence[Row]) -> None:
    header = ("accuracy", "method", *LOOKS, *(f"{a} − {b}" for a, b in PAIRS))
    page.csv("sharing.csv", header, gains(runs))
    count = COUNTS[0]
    alone = by_seed(runs, count, method="standalone", sharing="mean")
    fd = by_seed(runs, count, method="fd", sharing="mean")
    lead = f"{points(difference(fd, alone))}, its lead by construction"
    lines = [["FD", percent(estimate(fd)), "= Standalone", lead, "–"]]
    for method in CONTROLLED:
        mean, none = (by_seed(runs, count, method=method, sharing=s) for s in ("mean", "none"))
        lines.append(
            [
                registry.title(method),
                percent(estimate(mean)),
                percent(estimate(none)),
                points(difference(mean, none)),
                points(difference(none, alone)),
            ]
        )
        for counted in COUNTS:
            with_, without = (
                by_seed(runs, counted, method=method, sharing=s) for s in ("mean", "none")
            )
            by_itself = by_seed(runs, counted, method="standalone", sharing="mean")
            gain = difference(with_, without)
            deficit = difference(without, by_itself)
            page.says(gain, bonferroni(gain, len(CONTROLLED)), deficit)
            larger = {seed: -gain.values[i] + deficit.values[i] for i, seed in enumerate(with_)}
            page.says(estimate(larger))
    header = ("method", "as it is", "`sharing=none`", "gain from sharing", "none − Standalone")
    page.table("sharing", header, lines)
    by_count(page, runs)
    apart = {
        (row["method"], row["round"], row["sharing"]): float(row["minus_standalone"])
        for row in page.rows("course.csv")
    }
    rounds = sorted({int(t) for _, t, _ in apart})
    alone_there = [apart["pfedlora", str(t), "none"] for t in rounds]
    shared = [apart["pfedlora", str(t), "mean"] for t in rounds]
    parts = [b - a for a, b in zip(alone_there, shared, strict=True)]
    lines = [
        [name, *(signed(value, 1) for value in values)]
        for name, values in (
            ("the method, for a client alone", alone_there),
            ("sharing", parts),
            ("together, pFedLoRA − Standalone", shared),
        )
    ]
    page.whole("parts", ("points after round", *map(str, rounds)), lines)


def by_count(page: Page, runs: Sequence[Row]) -> None:
    """The gains from sharing by all ways of counting, with Bonferroni correction for all."""
    lines = []
    for method in CONTROLLED:
        cells = []
        for count in COUNTS:
            mean, none = (by_seed(runs, count, method=method, sharing=s) for s in ("mean", "none"))
            gain = difference(mean, none)
            wider = bonferroni(gain, len(CONTROLLED))
            text = f"{signed(100 * gain.mean)} ± {100 * (gain.half or 0):.2f}"
            text += f" (± {100 * (wider.half or 0):.2f})"
            cells.append(f"**{text}**" if wider.sign else text)
        lines.append([registry.title(method), *cells])
    names = ("all clients, at best validation", "all clients, final", "sampled, last round")
    page.whole("gains", ("gain from sharing", *names, "sampled, highest round"), lines)


def costs(page: Page) -> None:
    lines = []
    for row in page.rows("costs.csv"):
        name = row["method"] + (" (two seeds)" if row["seeds there"].endswith("of 2") else "")
        keys = ("rounds", "bytes, full", "FLOP, full", "whole run: parameters up", "down", "FLOP")
        lines.append([name, *(row[key] for key in keys)])
    page.whole(
        "costs",
        ("method", "rounds to 50 %", "sent", "FLOP", "parameters up, 60 rounds", "down", "FLOP"),
        lines,
    )
    of = {row["method"]: row for row in page.rows("costs.csv")}
    flops = {m: float(row["FLOP"].rstrip(" T")) for m, row in of.items()}
    page.says(*(flops[m] / flops["Standalone"] for m in ("FedMRL", "pFedMoE")))
    page.says(flops["pFedLoRA"] / flops["FedProto"], 0.6 + 5.85)  # million numbers of FD's, in all
    rows = page.rows("operations.csv")
    moe = by_seed(rows, "minus_standalone", method="pfedmoe")
    page.says(*moe.values())
    for method in METHODS[1:]:
        at = by_seed(rows, "minus_standalone", method=method)
        page.says(estimate({seed: value / 100 for seed, value in at.items()}))


def gains(runs: Sequence[Row]) -> Iterable[Sequence[object]]:
    """A row a count and a method that has a control."""
    for count in COUNTS[:2]:
        for method in controlled(runs):
            of = {kind: by_seed(runs, count, sharing=kind, method=method) for kind in LOOKS}
            of["Standalone"] = by_seed(runs, count, method="standalone")
            cells = [words.percent(measures.estimate(list(of[kind].values()))) for kind in LOOKS]
            yield (
                count,
                method,
                *cells,
                *(words.percent(measures.difference(of[a], of[b]), sign=True) for a, b in PAIRS),
            )


def controlled(rows: Sequence[Row]) -> list[str]:
    """The methods of which there is a control."""
    return [
        name
        for name in registry.NAMES
        if any(row["method"] == name and row["sharing"] != "mean" for row in rows)
    ]


def draw(rows: Sequence[Row], folder: Path) -> Path:
    """A panel a method that has a control: it and its controls minus Standalone, against rounds."""
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
        figure.savefig(folder / "sharing-course.png")
    return folder / "sharing-course.png"


def main() -> None:
    found = {kind: runs_of(Path(sys.argv[1]) / f"sharing-{kind}") for kind in LOOKS}
    alone = found["mean"].get("standalone") or sys.exit(
        f"{sys.argv[1]} has no completed run of Standalone with sharing=mean"
    )
    folder = RESULTS / "leaderboard"
    of_course = ("sharing", "method", "seeds", "round", "accuracy", "minus_standalone")
    write_csv(folder / "course.csv", of_course, course(found, alone))
    at_equal = ("method", "seed", "round", "minus_standalone")
    write_csv(folder / "operations.csv", at_equal, at_equal_operations(found["mean"], alone))


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
            last = round_within(rows, most)
            yield (
                method,
                seed,
                last,
                f"{100 * (rows[last]['accuracy'] - alone[seed][-1]['accuracy']):+.2f}",
            )


if __name__ == "__main__":
    main()
