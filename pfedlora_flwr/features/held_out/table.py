"""The clients that were never sampled: how accurate a method is for them beside the same clients
alone, by the number of their training samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.report import measures, style, words
from pfedlora_flwr.report.data_figures import site_name
from pfedlora_flwr.report.figures import Picture
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.table import Table
from pfedlora_flwr.runs.rows import HeldOutMean

_ACROSS = 3
"""Panels side by side."""
Sizes = Mapping[str, Mapping[int, HeldOutMean]]
"""By the number of samples that was asked for, and by seed."""


def table(study: Study) -> Table:
    """A row a method in each scenario and number of samples, of the runs that hold clients out."""
    rows = []
    for outcome in study.in_order():
        for asked, by_seed in sizes(outcome).items():
            found = [*by_seed.values()]
            ours, alone = (
                {seed: mean[name] for seed, mean in by_seed.items()}
                for name in ("accuracy", "alone_accuracy")
            )
            rows.append(
                words.names(outcome)
                | {
                    "samples": asked,
                    "clients": _whom(outcome, found),
                    "seeds": str(len(found)),
                    "adapted": words.percent(measures.estimate([*ours.values()])),
                    "alone": words.percent(measures.estimate([*alone.values()])),
                    "gain, points": words.percent(measures.difference(ours, alone), sign=True),
                    "operations": words.count(fmean(m["flops"] for m in found) or math.nan),
                    "alone: operations": words.count(fmean(m["alone_flops"] for m in found)),
                }
            )
    note = (
        "Clients that were never sampled, adapted to the last round's shared state. Mean accuracy"
        " on their own test parts in percent, over the clients, then over seeds; the gain is paired"
        f" by seed, with its 95 % t-interval; below {measures.FEWEST} seeds each seed's. `alone`:"
        " the same clients by Standalone, from their own initial weights, with at least as many"
        " operations as are known. `samples`: the largest number of training samples of a client."
    )
    return Table("held_out", "Held-out clients", rows, note)


def sizes(outcome: Outcome) -> Sizes:
    """The means after the last round of its runs."""
    found: dict[str, dict[int, HeldOutMean]] = {}
    for seed, run in outcome.runs.items():
        told = run.result.get("held_out")
        for mean in told["means"] if told else ():
            if mean["round"] == run.result["rounds"]:
                found.setdefault(mean["asked"], {})[seed] = mean
    return found


def _whom(outcome: Outcome, found: Sequence[HeldOutMean]) -> str:
    """How many clients a row is of; of one its name."""
    run = next(iter(outcome.runs.values()))
    if len(told := run.result["held_out"]["clients"]) == 1:
        return site_name(run, told[0])
    return " or ".join(dict.fromkeys(str(m["clients"]) for m in found))


def figures(study: Study, folder: Path) -> list[Picture]:
    """Accuracy against the number of samples, a panel a scenario; none where nobody is held out."""
    panels = {
        words.keys(scenario): outcomes
        for scenario in study.scenarios
        if (outcomes := [o for o in study.ordered(scenario) if sizes(o)])
    }
    if not panels:
        return []
    columns = min(_ACROSS, len(panels))
    rows = math.ceil(len(panels) / columns)
    with style.drawing(rows, columns, (1.0 + 2.4 * columns, 0.8 + 2.2 * rows)) as (figure, axes):
        for axis, (title, outcomes) in zip(axes.flat, panels.items(), strict=False):
            axis.set_xscale("log")
            at = {round(samples) for outcome in outcomes for samples in _lines(axis, outcome)}
            axis.set_xticks(sorted(at), map(str, sorted(at)))
            axis.minorticks_off()
            axis.set_xlabel("training samples of a client")
            axis.set_ylabel("mean test accuracy (%)")
            axis.set_title(title)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        methods = {o.title: o for outcomes in panels.values() for o in outcomes}
        style.legend(figure, [*methods.values()])
        path = style.save(figure, folder, "held_out")
    text = (
        "Held-out clients: accuracy against the number of training samples, mean over clients and"
        " seeds. Thin dotted lines without marks: the same clients alone, with at least as many"
        f" operations as are known of {', '.join(methods)}."
    )
    return [Picture(path, text)]


def _lines(axis: Any, outcome: Outcome) -> list[float]:
    """Draws a method's two lines; their numbers of samples."""
    colour, marker, line = style.of_outcome(outcome)
    means = [[*by_seed.values()] for by_seed in sizes(outcome).values()]
    means.sort(key=lambda found: fmean(m["samples"] for m in found))
    at = [fmean(m["samples"] for m in found) for found in means]
    ours = [100 * fmean(m["accuracy"] for m in found) for found in means]
    alone = [100 * fmean(m["alone_accuracy"] for m in found) for found in means]
    axis.plot(at, ours, color=colour, marker=marker, linestyle=line)
    if outcome.method != "standalone":
        axis.plot(at, alone, ":" if len(at) > 1 else "_", color=colour, linewidth=0.8)
    return at
