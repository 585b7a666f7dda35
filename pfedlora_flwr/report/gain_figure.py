"""The figures of each method's gain from sharing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.features.sharing.rules import NAMES
from pfedlora_flwr.report import decision, gains, measures, style, words
from pfedlora_flwr.report.figures import Picture
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.measures import Estimate

LOOKS = {"mean": ("#0072B2", "D"), "none": ("#000000", "o"), "start": ("#D55E00", "s")}
"""Colour and marker of a method and of its controls."""
_ACROSS = 3
"""Panels side by side."""
Differences = Callable[[Study, Outcome], Mapping[str, Estimate]]
Panel = Mapping[str, Mapping[str, Estimate]]
"""By the row's label, the differences by control, or of the method itself by `mean`."""


def figures(study: Study, folder: style.Place) -> list[Picture]:
    """The methods and their controls beside Standalone, and the table's differences; none where a
    method stands beside neither."""
    score = words.gained(study.score)
    beside = f"Each method's {score} minus that of training alone, at best validation"
    own = f"{gains.HEADING}: each method's {score} at best validation minus its control's"
    if gains.shared(study):
        beside += "; a method that gains as much without sharing is no reason to federate"
    label = NAMES["mean"] + " − {}"
    return [
        *_picture(study, folder, "gain", gains.beside_standalone, "{} − Standalone", beside),
        *_picture(study, folder, "sharing", gains.differences, label, own),
    ]


def _picture(
    study: Study, folder: style.Place, name: str, differences: Differences, label: str, text: str
) -> list[Picture]:
    panels = _panels(study, differences)
    if not panels:
        return []
    path = draw(panels, folder, name, label)
    bars = (
        "bars: 95 % intervals of the differences paired by seed, each by itself: the verdict's are"
        f" wider where several methods are tried; below {measures.FEWEST} seeds a point a seed"
    )
    return [Picture(path, f"{text}; {bars}.")]


def draw(panels: Mapping[str, Panel], folder: style.Place, name: str, label: str) -> Path:
    """Draws a panel a title; `label` names a control in the legend. Returns the PNG's path."""
    kinds = [
        kind
        for kind in LOOKS
        if any(kind in found for panel in panels.values() for found in panel.values())
    ]
    columns = min(_ACROSS, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = 1.2 + 2.6 * columns, 0.4 + rows * (0.6 + 0.24 * max(map(len, panels.values())))
    with style.drawing(rows, columns, size) as (figure, axes):
        for axis, (title, panel) in zip(axes.flat, panels.items(), strict=False):
            _draw(axis, panel, kinds)
            axis.set_title("" if title == words.ONE else title)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        handles = [_handle(kind, label) for kind in kinds]
        look: dict[str, Any] = {"loc": "outside lower center", "frameon": False}
        figure.legend(handles=handles, ncols=len(kinds), **look)
        return style.save(figure, folder, name)


def _panels(study: Study, differences: Differences) -> dict[str, Panel]:
    """A panel a scenario, with a row a method; of one method in several scenarios one panel, with a
    row a scenario."""
    found = {
        gains.name_of(scenario): {
            o.title: row for o in gains.methods(study, scenario) if (row := differences(study, o))
        }
        for scenario in gains.shared(study) or decision.compared(study)
    }
    panels: dict[str, Panel] = {scenario: panel for scenario, panel in found.items() if panel}
    methods = {method for panel in panels.values() for method in panel}
    if len(methods) == 1 < len(panels):
        return {
            method: {scenario: panel[method] for scenario, panel in panels.items()}
            for method in methods
        }
    return panels


def _draw(axis: Any, panel: Panel, kinds: list[str]) -> None:
    axis.axvline(0, color="#808080", linewidth=0.8)
    for place, found in enumerate(panel.values()):
        for kind, difference in found.items():
            height = place + 0.64 * ((kinds.index(kind) + 0.5) / len(kinds) - 0.5)
            _bar(axis, difference, height, kind)
    axis.set_yticks(range(len(panel)), list(panel))
    axis.set_ylim(len(panel) - 0.4, -0.6)
    axis.set_xlabel("points")


def _bar(axis: Any, difference: Estimate, height: float, kind: str) -> None:
    """A difference in points at this height, with its interval or, where it has none, as a point a
    seed."""
    colour, marker = LOOKS[kind]
    if difference.half is None:
        points = [100 * value for value in difference.values]
        axis.plot(
            points, [height] * len(points), marker, color=colour, fillstyle="none", markersize=3
        )
    else:
        look = {"fmt": marker, "color": colour, "capsize": 2, "elinewidth": 1.0}
        axis.errorbar(100 * difference.mean, height, xerr=100 * difference.half, **look)


def _handle(kind: str, label: str) -> Any:
    from matplotlib.lines import Line2D

    colour, marker = LOOKS[kind]
    return Line2D([], [], color=colour, marker=marker, label=label.format(NAMES[kind]))
