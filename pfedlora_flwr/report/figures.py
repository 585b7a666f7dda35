"""The figures of a report. Each function draws one, into PNG, SVG and PDF, and returns it with its
caption."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.comparison.plan import Keys
from pfedlora_flwr.comparison.spec import short, slug
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import measures, words
from pfedlora_flwr.report.load import Study, tells_operations
from pfedlora_flwr.report.style import (
    Place,
    drawing,
    large_numbers,
    legend,
    of_outcome,
    panel,
    save,
)
from pfedlora_flwr.runs.rows import RoundRow
from pfedlora_flwr.training.metrics import place

_SMALLEST_SWEEP = 3
"""Points that make a curve."""
_DECADE = 10.0
_SILENT = "A method that sends nothing is a level line at its last accuracy in the second panel. "


@dataclass(frozen=True)
class Picture:
    """A figure on disk (the PNG; SVG and PDF lie beside it) and what it shows."""

    path: Path
    caption: str


Drawer = Callable[[Study, Keys, Place], Picture]


def drawers(study: Study, scenario: Keys) -> dict[str, Drawer]:
    """What draws the accuracies of a scenario, by the figure's name."""
    found: dict[str, Drawer] = {"curves": curves}
    runs = [run for o in study.ordered(scenario) for run in o.runs.values()]
    if len(study.runs) > 1 and all(run.clients for run in runs):
        found["box plot"] = boxes  # under masks no client's own is known
    return found


def _told(study: Study, outcomes: Sequence[Outcome]) -> str:
    """The score that is drawn: the verdict's where all lines have it, else accuracy."""
    score = place(study.score)
    rows = [row for o in outcomes for run in o.runs.values() for row in run.rounds]
    return study.score if all(score in row for row in rows if row["evaluated"]) else "accuracy"


def curves(study: Study, scenario: Keys, folder: Place) -> Picture:
    """The score against rounds, bytes and operations: the mean over seeds, the band from the lowest
    to the highest seed."""
    outcomes = study.ordered(scenario)
    score = _told(study, outcomes)
    panels: list[tuple[str, str, Callable[[RoundRow], float]]] = [
        ("round", "linear", lambda row: 0.0),
        ("sent, up and down", "log", lambda row: row["bytes_up"] + row["bytes_down"]),
        ("operations in training (FLOP)", "linear", lambda row: row["flops"]),
    ]
    if not (sent := study.communicates(scenario)):
        del panels[1]
    with drawing(1, len(panels), (7.0 * len(panels) / 3, 2.6), sharey=True) as (figure, axes):
        for axis, (label, scale, measure) in zip(axes[0], panels, strict=True):
            for outcome in outcomes:
                if label.startswith("operations") and not tells_operations(outcome):
                    continue
                _curve(axis, outcome, place(score), measure if label != "round" else None, scale)
            for number, drawn in enumerate((*axis.lines, *axis.collections)):
                drawn.set_gid(f"{label[0]}{number}:{drawn.get_label()}")  # what the page toggles
            axis.set_xlabel(label)
            _ticks(axis, label, scale)
        axes[0][0].set_ylabel(f"mean test {words.score(score)} ({words.unit(score)})")
        figure.suptitle(words.keys(scenario), fontsize=8)
        legend(figure, outcomes)
        path = save(figure, folder, f"curves_{slug(scenario) or 'all'}")
    against = "rounds, bytes and operations" if sent else "rounds and operations"
    caption = words.score_first(score)
    caption += f" against {against}{words.of(scenario)}: the mean over seeds"
    spread = ". "
    if any(len(o.runs) > 1 for o in outcomes):
        spread = "; the band reaches from the lowest to the highest seed. "
    caption += spread + (_SILENT if any(_silent(o) for o in outcomes) else "")
    if left_out := [o.title for o in outcomes if not tells_operations(o)]:
        caption += f"Not against operations, which are not known: {', '.join(left_out)}."
    return Picture(path, caption.strip())


def boxes(study: Study, scenario: Keys, folder: Place) -> Picture:
    """The clients' scores at the end, all seeds together: a box a method, the mean as +."""
    outcomes = study.ordered(scenario)
    score = _told(study, outcomes)
    with panel((max(2.2, 0.72 * len(outcomes) + 0.8), 2.6)) as (figure, axis):
        values = [
            [
                100 * cast(Mapping[str, float], row)[place(score)]
                for run in o.runs.values()
                for row in run.result["per_client"].values()
                if place(score) in row
            ]
            for o in outcomes
        ]
        look = {
            "showmeans": True,
            "patch_artist": True,
            "widths": 0.6,
            "flierprops": {"marker": ".", "markersize": 3},
        }
        plus = {"marker": "+", "markeredgecolor": "black", "markersize": 8, "markeredgewidth": 1.4}
        drawn = axis.boxplot(values, meanprops=plus, medianprops={"color": "black"}, **look)
        for box, outcome in zip(drawn["boxes"], outcomes, strict=True):
            box.set_facecolor(of_outcome(outcome)[0])
            box.set_alpha(0.4)
        axis.set_xticks(
            range(1, len(outcomes) + 1), [o.title for o in outcomes], rotation=25, ha="right"
        )
        axis.set_ylabel(f"client's test {words.score(score)} ({words.unit(score)})")
        axis.set_title(words.keys(scenario))
        path = save(figure, folder, f"clients_{slug(scenario) or 'all'}")
    return Picture(
        path,
        f"Test {words.score(score)} of each client's final model, all seeds together"
        f"{words.of(scenario)}; +"
        " marks the mean.",
    )


def robustness(study: Study, folder: Place) -> list[Picture]:
    """Accuracy against every numeric key that the scenarios vary alone, one panel for each setting
    of the others."""
    names = dict.fromkeys(
        key
        for key, value in [pair for scenario in study.scenarios for pair in scenario.items()]
        if isinstance(value, int | float) and not isinstance(value, bool)
    )
    return [picture for name in names if (picture := _robustness(study, name, folder))]


def _robustness(study: Study, name: str, folder: Place) -> Picture | None:
    groups: dict[tuple[Any, ...], list[Keys]] = {}
    for scenario in study.scenarios:
        if name in scenario and study.in_scenario(scenario):
            groups.setdefault(tuple((k, v) for k, v in scenario.items() if k != name), []).append(
                scenario
            )
    groups = {rest: members for rest, members in groups.items() if len(members) >= _SMALLEST_SWEEP}
    if not groups:
        return None
    there = [o for members in groups.values() for s in members for o in study.in_scenario(s)]
    last = {o.method: o for o in there}
    methods = registry.ordered(last)
    with drawing(1, len(groups), (max(2.6, 2.6 * len(groups)), 2.6)) as (figure, axes):
        for axis, (rest, members) in zip(axes[0], groups.items(), strict=True):
            members.sort(key=lambda s: float(s[name]))
            for method in methods:
                found = [(float(s[name]), o) for s in members if (o := study.at(s, method))]
                if found:
                    _sweep(axis, found)
            axis.set_xlabel(words.NAMES.get(name, name))
            axis.set_title(words.keys(dict(rest)) if rest else "")
            _at_values(axis, [float(s[name]) for s in members])
        axes[0][0].set_ylabel("mean test accuracy (%)")
        legend(figure, [last[method] for method in methods])
        path = save(figure, folder, f"robustness_{short(name)}")
    return Picture(
        path,
        f"Accuracy at best validation against {words.NAMES.get(name, name)}; bars: 95 % intervals"
        " over seeds (three or more).",
    )


def _sweep(axis: Any, found: Sequence[tuple[float, Outcome]]) -> None:
    """One method's line: its accuracy at each value of the key, with the interval over seeds."""
    points = [(x, e) for x, o in found if (e := measures.accuracy(o.runs))]
    xs, ys = [x for x, _ in points], [100 * e.mean for _, e in points]
    halves = [100 * (e.half or 0.0) for _, e in points]
    colour, marker, line = of_outcome(found[0][1])
    axis.errorbar(
        xs, ys, halves, color=colour, marker=marker, linestyle=line, capsize=2, elinewidth=0.8
    )


def _at_values(axis: Any, values: Sequence[float]) -> None:
    """Ticks at the values of a sweep, to a log scale where they span a decade."""
    if values[0] > 0 and values[-1] / values[0] >= _DECADE:
        axis.set_xscale("log")
        axis.minorticks_off()
    axis.set_xticks(values, [f"{value:g}" for value in values])


def _silent(outcome: Outcome) -> bool:
    sent = [run.result["communication"] for run in outcome.runs.values()]
    return all(c["bytes_up"] + c["bytes_down"] == 0 for c in sent)


def _curve(
    axis: Any, outcome: Outcome, score: str, measure: Callable[[RoundRow], float] | None, scale: str
) -> None:
    """One method's line, from the first evaluation on to the round in which the first seed ended; x
    is the seeds' mean of the measure summed up to the round."""
    colour, marker, line = of_outcome(outcome)
    whole = [run.rounds for run in outcome.runs.values()]
    runs = [rows[: min(map(len, whole))] for rows in whole]
    known = [i for i in range(len(runs[0])) if all(rows[i]["evaluated"] for rows in runs)]
    if not known:
        return
    ys = [[100 * cast(Mapping[str, float], row).get(score, 0.0) for row in rows] for rows in runs]
    mean = [statistics.fmean(values) for values in zip(*ys, strict=True)]
    if measure is None:
        xs = [float(row["round"]) for row in runs[0]]
    else:
        sums = [accumulate(map(measure, rows)) for rows in runs]
        xs = [statistics.fmean(at_round) for at_round in zip(*sums, strict=True)]
    if measure is not None and xs[-1] == 0:
        axis.axhline(mean[-1], color=colour, linestyle=line, linewidth=1.0, label=outcome.title)
        return
    first = next(i for i in known if xs[i] > 0 or scale != "log")
    look = {"color": colour, "label": outcome.title}
    every = max(1, (len(xs) - first) // 6)  # about six on a line
    axis.plot(xs[first:], mean[first:], linestyle=line, marker=marker, markevery=every, **look)
    if len(runs) > 1:
        low, high = ([pick(values) for values in zip(*ys, strict=True)] for pick in (min, max))
        axis.fill_between(xs[first:], low[first:], high[first:], alpha=0.15, linewidth=0, **look)


def _ticks(axis: Any, label: str, scale: str) -> None:
    """Whole rounds; elsewhere large numbers in words, few enough to stand side by side, on a log
    axis only where it spans a decade."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    low, high = axis.dataLim.minposx, axis.dataLim.xmax
    if scale == "log" and low < high and high / low >= _DECADE:
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(
            LogLocator(subs=(1.0, 3.0) if high / low < _DECADE**2 else (1.0,), numticks=5)
        )
        axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=label == "round"))
    if label != "round":
        axis.xaxis.set_major_formatter(large_numbers("B" if label.startswith("sent") else ""))
