"""Who gains: each site with its own model alone and with the federation's, in one comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import SCORES
from pfedlora_flwr.report import measures, style, words
from pfedlora_flwr.report.data_figures import data_of
from pfedlora_flwr.report.decision import Finding, best_of
from pfedlora_flwr.report.figures import Picture
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.measures import Estimate
from pfedlora_flwr.report.table import LOSS, Table

_MOST = 60
"""Sites that a table and a figure can show one by one."""
_RED, _BLUE = "#B00020", "#0072B2"


@dataclass(frozen=True)
class Site:
    """A site's scores in [0, 1], means over seeds, and the gain by seed. rows: of its training
    part, the mean."""

    name: str
    rows: float | None
    alone: float
    ours: float
    gain: Estimate


def sites(finding: Finding) -> list[Site]:
    """The sites, the one that gains most first; none where runs do not tell the score."""
    seeds = [seed for seed in finding.ours.runs if seed in finding.theirs.runs]
    runs = [(finding.ours.runs[seed], finding.theirs.runs[seed]) for seed in seeds]
    place, found = SCORES[finding.score], []
    names = _names(finding)
    for client in runs[0][0].clients:
        pairs: list[list[Any]] = [
            [run.result["per_client"].get(str(client), {}) for run in pair] for pair in runs
        ]
        told = [[row.get(place) for row in pair] for pair in pairs]
        by_seed = [(float(a), float(b)) for a, b in told if a is not None and b is not None]
        gain = measures.estimate([a - b for a, b in by_seed])
        if gain is None:
            return []
        rows = [pair[0].get("samples") for pair in pairs]
        known = [int(n) for n in rows if n]
        name = names[client] if client < len(names) else f"client {client}"
        ours, alone = (fmean(score) for score in zip(*by_seed, strict=True))
        found.append(Site(name, fmean(known) if known else None, alone, ours, gain))
    return sorted(found, key=lambda site: -site.gain.mean)


def chief(study: Study, found: Sequence[Finding]) -> tuple[Finding, list[Site]] | None:
    """The best method beside the reference, and its sites; None of several scenarios, or of more
    sites than can be shown."""
    if len({str(f.scenario) for f in found}) != 1:
        return None
    best = best_of(found)
    of = sites(best)
    return (best, of) if 1 < len(of) <= _MOST else None


def sentence(study: Study, found: Sequence[Finding]) -> str:
    """How many sites gain and lose, and the worst one; empty where they are not shown."""
    if (shown := chief(study, found)) is None:
        return ""
    best, of = shown
    lose = [site for site in of if site.gain.mean < 0]
    clearly = sum(site.gain.sign < 0 for site in lose)
    worst = min(of, key=lambda site: site.ours)
    return (
        f" By site, after the last round: {sum(s.gain.mean > 0 for s in of)} of {len(of)} gain with"
        f" {best.ours.title} and {len(lose)} lose"
        + (f" ({clearly} by an interval that excludes 0)" if lose else "")
        + f"; the worst one then is {worst.name}, with {100 * worst.ours:.1f} %"
        f" ({best.base.removeprefix('training ')} {100 * worst.alone:.1f})."
    )


def table(study: Study, found: Sequence[Finding]) -> Table:
    """A row a site."""
    shown = chief(study, found)
    rows = [
        {
            "site": site.name,
            "training rows": f"{site.rows:.0f}" if site.rows else "–",
            shown[0].reference: f"{100 * site.alone:.2f}",
            shown[0].ours.title: f"{100 * site.ours:.2f}",
            "gain, points": (LOSS if site.gain.mean < 0 else "")
            + words.percent(site.gain, sign=True),
        }
        for site in (shown[1] if shown else ())
        if shown
    ]
    note = (
        f"{words.score(study.score).capitalize()} of the final models on each site's own test part,"
        " in percent, mean over seeds; the gain is paired by seed, with its 95 % t-interval, each"
        f" site by itself. {LOSS.strip()} and red: the site loses on average."
    )
    return Table("sites", "Gain by site", rows, note)


def figures(study: Study, found: Sequence[Finding], folder: Path) -> list[Picture]:
    """A line a site, from its score alone to that with the federation."""
    if (shown := chief(study, found)) is None:
        return []
    best, of = shown
    with style.panel((4.6, 0.9 + 0.22 * len(of))) as (figure, axis):
        for place, site in enumerate(of):
            colour = _RED if site.gain.mean < 0 else _BLUE
            ends = [100 * site.alone, 100 * site.ours]
            axis.plot(ends, [place, place], color=colour, linewidth=1.6)
            axis.plot(ends[0], place, "o", color=colour, markerfacecolor="white", markersize=5)
            axis.plot(
                ends[1], place, "v" if site.gain.mean < 0 else "o", color=colour, markersize=5
            )
            axis.annotate(
                f"{100 * site.gain.mean:+.1f}",
                (1.01, place),
                xycoords=("axes fraction", "data"),
                va="center",
                color=colour,
                fontsize=7,
            )
        labels = [f"{s.name} ({s.rows:.0f} rows)" if s.rows else s.name for s in of]
        axis.set_yticks(range(len(of)), style.literal(labels))
        axis.set_ylim(len(of) - 0.4, -0.6)
        axis.set_xlabel(f"{words.score(study.score)} (%)")
        axis.set_title(f"○ {best.reference}   ● {best.ours.title}   ▼ loses")
        path = style.save(figure, folder, "sites")
    text = (
        f"Each site's {words.score(study.score)} with {best.reference} (open) and with"
        f" {best.ours.title} (filled; a triangle where the site loses), final models, mean over"
        " seeds; at the right the gain in points."
    )
    return [Picture(path, text)]


def _names(finding: Finding) -> Sequence[str]:
    try:
        return data_of(next(iter(finding.ours.runs.values())))[1].owners
    except UserError:  # the data is not here
        return ()
