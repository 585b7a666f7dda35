"""Who gains: each site with its own model alone and with the federation's, in one comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from statistics import fmean
from typing import Any, cast

from pfedlora_flwr.errors import counted
from pfedlora_flwr.report import measures, style, words
from pfedlora_flwr.report.data_figures import site_name
from pfedlora_flwr.report.decision import ALONE, SHARE, Finding, best_of
from pfedlora_flwr.report.figures import Picture
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.measures import Estimate
from pfedlora_flwr.report.table import LOSS, Table
from pfedlora_flwr.runs.completed import Run
from pfedlora_flwr.training.metrics import place, worth

_MOST = 60
"""Sites that a table and a figure can show one by one."""
_RED, _BLUE = "#B00020", "#0072B2"


@dataclass(frozen=True)
class Site:
    """A site's scores in [0, 1], means over seeds, and the gain by seed. rows: of its training
    part, the mean."""

    name: str
    client: int
    rows: float | None
    alone: float
    ours: float
    gain: Estimate


def sites(finding: Finding) -> list[Site]:
    """The sites, the one that gains most first; without those of which no run tells the score."""
    runs = _pairs(finding)
    found, at_best = [], _at_best(finding)
    for client in runs[0][0].clients:
        pairs = [[_told(run, client, at_best) for run in pair] for pair in runs]
        told = [[row.get(place(finding.score)) for row in pair] for pair in pairs]
        by_seed = [(float(a), float(b)) for a, b in told if a is not None and b is not None]
        gain = measures.estimate(
            [worth(finding.score, a) - worth(finding.score, b) for a, b in by_seed]
        )
        if gain is None:  # as of AUROC where the test part has one class
            continue
        rows = [pair[0].get("samples") for pair in pairs]
        known = [int(n) for n in rows if n]
        name = site_name(runs[0][0], client)
        ours, alone = (fmean(score) for score in zip(*by_seed, strict=True))
        found.append(Site(name, client, fmean(known) if known else None, alone, ours, gain))
    return sorted(found, key=lambda site: -site.gain.mean)


def _pairs(finding: Finding) -> list[tuple[Run, Run]]:
    """Both runs of each seed that both have."""
    theirs = finding.theirs.runs
    return [(run, theirs[seed]) for seed, run in finding.ours.runs.items() if seed in theirs]


def _at_best(finding: Finding) -> bool:
    """Whether the sites' scores are known at the rounds by which the verdict judges."""
    return all(run.sites_at_best for pair in _pairs(finding) for run in pair)


def _told(run: Run, client: int, at_best: bool) -> Mapping[str, Any]:
    every = run.sites_at_best if at_best else cast(Mapping[str, Any], run.result["per_client"])
    return every.get(str(client), {})


def _when(finding: Finding) -> str:
    return "at the best validation" if _at_best(finding) else "after the last round"


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
    rows = worth_in_rows(study, best, of).get(None, "–")
    more = f" On average the gain is worth {rows} more training rows a site." if rows != "–" else ""
    clearly = sum(site.gain.sign < 0 for site in lose)
    worst = min(of, key=lambda site: worth(best.score, site.ours))
    unit, out = words.unit(best.score), len(next(iter(best.ours.runs.values())).clients) - len(of)
    no = f" ({counted(out, 'site')} without {words.score(best.score)} left out)" if out else ""
    return (
        f" By site, {_when(best)}{no}: {sum(s.gain.mean > 0 for s in of)} of {len(of)} gain"
        f" with {best.ours.title} and {len(lose)} lose"
        + (f" ({clearly} by an interval that excludes 0)" if lose else "")
        + f"; the worst one then is {worst.name}, with {100 * worst.ours:.1f} {unit}"
        f" ({best.base.removeprefix('training ')} {100 * worst.alone:.1f})." + more
    )


def worth_in_rows(study: Study, best: Finding, of: Sequence[Site]) -> dict[int | None, str]:
    """By site, how many more training rows alone would gain as much, by its own learning curve;
    of None that of the sites' means. Empty unless Standalone was run with several shares of them.

    The curve is a line between neighbours over the logarithm of the rows, and the last one goes on
    for one doubling."""
    if SHARE not in best.scenario or best.theirs.method != ALONE:
        return {}
    others = [
        _points(
            [run for seed, run in o.runs.items() if seed in best.theirs.runs],
            best.score,
            all(run.sites_at_best for run in o.runs.values()) and _at_best(best),
        )
        for o in study.outcomes
        if o.method == ALONE
        and SHARE in o.scenario
        and o.scenario | {SHARE: 0} == best.theirs.scenario | {SHARE: 0}
        and o.runs
    ]
    curves: dict[int | None, list[tuple[float, float]]] = {}
    for points in others:
        for client, point in points.items():
            curves.setdefault(client, []).append(point)
        if points:
            rows, scores = (fmean(values) for values in zip(*points.values(), strict=True))
            curves.setdefault(None, []).append((rows, scores))
    ends: dict[int | None, tuple[float, float]] = {
        s.client: (s.rows or 0.0, worth(best.score, s.ours)) for s in of
    }
    ends[None] = fmean(n for n, _ in ends.values()), fmean(score for _, score in ends.values())
    return {k: _more(sorted(curves[k]), *end) for k, end in ends.items() if k in curves}


def _points(runs: Sequence[Run], score: str, at_best: bool) -> dict[int, tuple[float, float]]:
    """By client the rows of its training part and the worth of its score, means over these runs;
    empty where a client has none."""
    found: dict[int, tuple[float, float]] = {}
    for client in runs[0].clients if runs else ():
        told = [_told(run, client, at_best) for run in runs]
        scores = [float(a) for row in told if (a := row.get(place(score))) is not None]
        if not scores:
            return {}
        known = [int(n) for row in told if (n := row.get("samples"))]
        found[client] = fmean(known) if known else 0.0, worth(score, fmean(scores))
    return found


def _more(curve: Sequence[tuple[float, float]], rows: float, reached: float) -> str:
    """The rows beyond `rows` at which a learning curve reaches a score; `> N` beyond its end."""
    at = [(log2(n), score) for n, score in curve if n > 0]
    here = log2(rows) if rows else 0.0
    if len(at) < 2 or not rows:
        return "–"
    (x, before), (y, last) = at[-2:]
    if y > x and last > before:
        at.append((y + 1, last + (last - before) / (y - x)))
    ahead = [(a, b) for a, b in pairwise(at) if b[0] > here]
    if not ahead or reached <= ahead[0][0][1]:
        return "–"
    for (a, low), (b, high) in ahead:
        if low < reached <= high:
            return f"{2 ** (a + (b - a) * (reached - low) / (high - low)) - rows:.0f}"
    return f"> {2 ** at[-1][0] - rows:.0f}" if len(at) > len(curve) else "–"


def table(study: Study, found: Sequence[Finding]) -> Table:
    """A row a site."""
    if (shown := chief(study, found)) is None:
        return Table("sites", "Gain by site", [])
    best, of = shown
    more = worth_in_rows(study, best, of)
    rows = [
        {
            "site": site.name,
            "training rows": f"{site.rows:.0f}" if site.rows else "–",
            best.reference: f"{100 * site.alone:.2f}",
            best.ours.title: f"{100 * site.ours:.2f}",
            "gain, points": (LOSS if site.gain.mean < 0 else "")
            + words.percent(site.gain, sign=True),
            **({"worth, rows": more.get(site.client, "–")} if more else {}),
        }
        for site in of
    ]
    note = (
        f"{words.score_first(study.score)} {_when(best)} on each site's own test part, in"
        f" {words.unit(study.score)}, mean over seeds; the gain is paired by seed, with its 95 %"
        f" t-interval, each site by itself. {LOSS.strip()} and red: the site loses on average."
    )
    if not _at_best(best):
        note += " The verdict is on the round of the best validation: its gain is not their mean."
    if more:
        note += (
            " Worth: how many more training rows alone would gain as much, by the site's own"
            f" learning curve; by the curve of the means {more[None]} a site. –: no gain, or none"
            " that the curve tells."
        )
    return Table("sites", "Gain by site", rows, note)


def figures(study: Study, found: Sequence[Finding], folder: style.Place) -> list[Picture]:
    """A line a site, from its score alone to that with the federation."""
    if (shown := chief(study, found)) is None:
        return []
    best, of = shown
    with style.panel((4.6, 0.9 + 0.22 * len(of))) as (figure, axis):
        for place, site in enumerate(of):
            colour, marker = (_RED, "v") if site.gain.mean < 0 else (_BLUE, "o")
            ends = [100 * site.alone, 100 * site.ours]
            axis.plot(ends, [place, place], color=colour, linewidth=1.6)
            axis.plot(ends[0], place, "o", color=colour, markerfacecolor="white", markersize=5)
            axis.plot(ends[1], place, marker, color=colour, markersize=5)
            gain, beside = f"{100 * site.gain.mean:+.1f}", ("axes fraction", "data")
            look: dict[str, Any] = {"va": "center", "color": colour, "fontsize": 7}
            axis.annotate(gain, (1.01, place), xycoords=beside, **look)
        labels = [f"{s.name} ({s.rows:.0f} rows)" if s.rows else s.name for s in of]
        axis.set_yticks(range(len(of)), style.literal(labels))
        axis.set_ylim(len(of) - 0.4, -0.6)
        axis.set_xlabel(f"{words.score(study.score)} ({words.unit(study.score)})")
        axis.set_title(f"○ {best.reference}   ● {best.ours.title}   ▼ loses")
        path = style.save(figure, folder, "sites")
    text = (
        f"Each site's {words.score(study.score)} with {best.reference} (open) and with"
        f" {best.ours.title} (filled; a triangle where the site loses), {_when(best)}, mean over"
        " seeds; at the right the gain in points."
    )
    return [Picture(path, text)]
