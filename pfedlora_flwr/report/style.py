"""The style of every figure: colours for colour-blind readers (Okabe and Ito), sizes for small
print."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.methods import registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

OKABE_ITO = ("#D55E00", "#000000", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#0072B2", "#999999")
MARKERS = ("o", "s", "P", "X", "D", "v", "^", "*")
LINES = ("-", "--", "-.", ":")
_OWN = (
    *(("#F0E442", "h", "-"), ("#882255", "p", "--"), ("#332288", "<", "-."), ("#44AA99", ">", ":")),
    *(("#AA4499", "H", "-"), ("#117733", "d", "--"), ("#661100", "8", "-."), ("#DDCC77", "X", ":")),
)
"""Colour, marker and line of users' own methods, after Tol's muted colours."""
_OTHER_LETTERS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Source Han Sans SC"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Microsoft YaHei", "PingFang SC", "SimHei"),
    *("Hiragino Sans", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS"),
    *("Noto Sans Devanagari", "Noto Sans Thai", "Noto Sans Bengali", "Noto Sans Tamil"),
)
"""Fonts of letters that ours lacks, on Linux, Windows and macOS."""
_GAP = 3.0
"""Pixels between two labels."""
_SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.grid": True,
    "grid.color": "#808080",
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "svg.hashsalt": "pfedlora",
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}


def of_method(method: str, own: int = 0) -> tuple[str, str, Any]:
    """Colour, marker and line of a method, by its place in the registry; of a user's own, by its
    place among these, `own`."""
    if method == registry.POOLED:
        return "#666666", ".", (0, (1, 1))
    if method not in registry.NAMES:
        return _OWN[own % len(_OWN)]
    turn, i = divmod(registry.NAMES.index(method), len(OKABE_ITO))
    return OKABE_ITO[i], MARKERS[(i + turn) % len(MARKERS)], LINES[(i + turn) % len(LINES)]


def of_outcome(outcome: Outcome) -> tuple[str, str, Any]:
    """Those of its method, in a report."""
    return of_method(outcome.method, outcome.own)


def literal(names: Iterable[str], most: int = 32) -> list[str]:
    """Names that a figure shows, of `most` characters each: of a longer one begin and end. Between
    two dollar signs matplotlib would read formulas."""
    ends = most // 2
    cut = (n if len(n) <= most else f"{n[: most - ends - 1]}…{n[-ends:]}" for n in names)
    return [name.replace("$", r"\$") for name in cut]


@cache
def fonts(own: str = "DejaVu Sans") -> list[str]:
    """The font of all figures, and those here that have the letters which it lacks."""
    from matplotlib.font_manager import get_font_names

    there = get_font_names()
    return [own, *(name for name in _OTHER_LETTERS if name in there)]


@contextmanager
def drawing(
    rows: int, columns: int, size: tuple[float, float], **options: Any
) -> Iterator[tuple[Figure, Any]]:
    """A new figure of `size` inches and its axes, [rows, columns], under our settings. The caller's
    backend, as a notebook has one, stays as it is."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_SETTINGS, "font.family": fonts()}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False, **options)


@contextmanager
def panel(size: tuple[float, float]) -> Iterator[tuple[Figure, Any]]:
    """The same with one panel, and its axes."""
    with drawing(1, 1, size) as (figure, axes):
        yield figure, axes[0][0]


def remove(folder: Path, name: str) -> None:
    """What `save` wrote under this name."""
    for suffix in ("svg", "pdf", "png"):
        (folder / f"{name}.{suffix}").unlink(missing_ok=True)


class Kept(dict[str, Any]):
    """In the place of a folder: the figures by name, not written."""


Place = Path | Kept


def save(figure: Figure, folder: Place, name: str) -> Path:
    """Writes `name`.png, `name`.svg and `name`.pdf (both transparent; without a date: the same data
    gives the same files); returns the first."""
    _thin(figure)
    if isinstance(folder, Kept):
        folder[name] = figure
        return Path(f"{name}.png")
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None}, transparent=True)
    figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None}, transparent=True)
    figure.savefig(folder / f"{name}.png")
    return folder / f"{name}.png"


def large_numbers(unit: str = "") -> EngFormatter:
    """Ticks as `50 G`, with a unit `50 MB`, without a power of ten at the axis's end."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(unit)


def legend(figure: Figure, outcomes: Iterable[Outcome]) -> None:
    """One legend for all panels, beneath them, of these outcomes' methods."""
    from matplotlib.lines import Line2D

    looks = ((*of_outcome(outcome), outcome.title) for outcome in outcomes)
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle=line, label=title)
        for colour, marker, line, title in looks
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False
    )


def _thin(figure: Figure) -> None:
    """Hides each tick's label that would touch the one before it."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        for axis, side in ((axes.xaxis, 0), (axes.yaxis, 1)):
            low, high = sorted(axis.get_view_interval())
            shown = [
                tick.label1
                for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
                if low <= tick.get_loc() <= high
            ]
            boxes = [
                (label.get_window_extent(), label)
                for label in shown
                if label.get_text() and not label.get_rotation() % 90
            ]
            end = -math.inf
            for box, label in sorted(boxes, key=lambda pair: pair[0].min[side]):
                if box.min[side] < end + _GAP:
                    label.set_visible(False)
                else:
                    end = box.max[side]
