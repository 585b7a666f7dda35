"""The picture of what sharing gives each method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import gains, measures, style
from pfedlora_flwr.report.figures import Picture
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.measures import Estimate

_LOOKS = {"none": ("#000000", "o"), "start": ("#D55E00", "s")}


def figures(study: Study, folder: Path) -> list[Picture]:
    """The table's differences in one picture, a panel a scenario; none where no method stands beside a control."""
    panels = [(scenario, found) for scenario in gains.shared(study) if (found := gains.methods(study, scenario))]
    if not panels:
        return []
    most = max(len(found) for _, found in panels)
    with style.drawing(1, len(panels), (1.2 + 2.6 * len(panels), 0.9 + 0.24 * most)) as (figure, axes):
        for axis, (scenario, found) in zip(axes[0], panels, strict=True):
            axis.axvline(0, color="#808080", linewidth=0.8)
            for place, ours in enumerate(found):
                for kind, shift in zip(gains.CONTROLS, (-0.16, 0.16), strict=True):
                    difference = measures.paired(ours.runs, gains.control(study, ours, kind)[1])
                    _bar(axis, difference, place + shift, kind)
            axis.set_yticks(range(len(found)), [registry.title(o.method) for o in found])
            axis.set_ylim(len(found) - 0.4, -0.6)
            axis.set_xlabel("points of test accuracy")
            axis.set_title(gains.name_of(scenario))
        figure.legend(handles=[_handle(kind) for kind in gains.CONTROLS], loc="outside lower center", ncols=2, frameon=False)
        path = style.save(figure, folder, "sharing")
    bars = f"bars: 95 % intervals of the differences paired by seed; below {measures.FEWEST} seeds a point a seed"
    return [Picture(path, f"{gains.HEADING}: each method's accuracy at best validation minus its control's; {bars}.")]


def _bar(axis: Any, difference: Estimate | None, height: float, kind: str) -> None:
    """A difference in points at this height, with its interval or, where it has none, as a point a seed."""
    if difference is None:
        return
    colour, marker = _LOOKS[kind]
    if difference.half is None:
        points = [100 * value for value in difference.values]
        axis.plot(points, [height] * len(points), marker, color=colour, fillstyle="none", markersize=3)
    else:
        axis.errorbar(100 * difference.mean, height, xerr=100 * difference.half, fmt=marker, color=colour, capsize=2, elinewidth=1.0)


def _handle(kind: str) -> Any:
    from matplotlib.lines import Line2D

    colour, marker = _LOOKS[kind]
    return Line2D([], [], color=colour, marker=marker, label=f"mean − {kind}")
