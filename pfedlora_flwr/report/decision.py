"""The decision that a comparison is for: of each method whether it helps beside training alone, how
small a difference the comparison could have seen, and what limits it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

import numpy as np

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.comparison.plan import Keys
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import gains, measures, words
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.measures import FEWEST, Estimate
from pfedlora_flwr.report.table import Table
from pfedlora_flwr.report.verdict import (
    ENDINGS,
    HARMS,
    HELPS,
    OPEN,
    SAME,
    Part,
    Verdict,
    redrawn,
    verdicts,
)

ALONE, SHARE = "standalone", "partition.share"
_NORMAL = 1.959964
"""Standard deviations to either side that hold 95 % of a normal distribution."""
_BY_ROW = {"accuracy": False, "balanced-accuracy": True}
"""The scores that are means over rows, and whether class by class."""


@dataclass(frozen=True)
class Finding:
    """A method beside the reference in one scenario. verdict: None below three seeds in common."""

    scenario: Keys
    ours: Outcome
    theirs: Outcome
    by: Estimate
    score: str
    verdict: Verdict | None = None

    @property
    def reference(self) -> str:
        """What it is beside: another method, or the same without sharing."""
        if self.theirs.method != self.ours.method:
            return self.theirs.title
        return gains.called(self.theirs)

    @property
    def base(self) -> str:
        """The same in a sentence."""
        return "training alone" if self.theirs.method == ALONE else self.reference

    @property
    def in_points(self) -> str:
        """`+1.23 (−0.20 to +2.66)`, in points; without an interval the seeds' values."""
        if self.verdict is None:
            return words.percent(self.by, sign=True)
        return f"{100 * self.by.mean:+.2f} ({self.interval})"

    @property
    def interval(self) -> str:
        """`−0.20 to +2.66`, the verdict's, in points."""
        assert self.verdict
        ends = (100 * (self.by.mean + side * self.verdict.half) for side in (-1, 1))
        return " to ".join(f"{end:+.2f}" for end in ends)

    @cached_property
    def rows(self) -> float | None:
        """The half-width of the difference's 95 % interval over other test rows of the same sites;
        None where it is not kept which rows were right."""
        parts = self._parts()
        if not parts:
            return None
        return _NORMAL * float(redrawn(parts, by_class=_BY_ROW[self.score]).std())

    @cached_property
    def of_rows(self) -> float | None:
        """The standard deviation that test rows make in one seed's difference; None as above."""
        parts, by_class = self._parts(), _BY_ROW.get(self.score, False)
        if not parts:
            return None
        seeds = ([[seed] for seed in of_seed] for of_seed in zip(*parts, strict=True))
        spread = [redrawn(seed, by_class=by_class, draws=400).var() for seed in seeds]
        return float(np.sqrt(fmean(spread)))

    @property
    def rows_a_site(self) -> float:
        """The mean number of test rows of a site."""
        run = next(iter(self.ours.runs.values()))
        return fmean(row["test"] for row in run.result["per_client"].values())

    def _parts(self) -> list[list[Part]]:
        """By site and seed which rows both had right; nothing where a run does not tell."""
        seeds = [seed for seed in self.ours.runs if seed in self.theirs.runs]
        if self.score not in _BY_ROW:
            return []
        found: dict[int, list[Part]] = {}
        for seed in seeds:
            ours, theirs = self.ours.runs[seed].right_rows, self.theirs.runs[seed].right_rows
            for client in ours.keys() & theirs.keys():
                a, b = ours[client], theirs[client]
                right = a.right.astype(float), b.right.astype(float)
                found.setdefault(client, []).append(Part(a.rows, a.classes, *right))
        complete = all(len(parts) == len(seeds) for parts in found.values())
        return [found[client] for client in sorted(found)] if complete else []


def compared(study: Study) -> list[Keys]:
    """The scenarios in which methods are compared: not those of controls, if there are others, and
    of several shares of a client's rows one."""
    shares = sorted({float(s[SHARE]) for s in study.scenarios if SHARE in s})
    base = shares[-2 if len(shares) > 2 else -1] if shares else None  # twice as many are there
    several = [
        scenario
        for scenario in study.scenarios
        if len(study.in_scenario(scenario)) > 1 and scenario.get(SHARE, base) == base
    ]
    return [scenario for scenario in several if study.communicates(scenario)] or several


def findings(study: Study) -> list[Finding]:
    """Of each method that was tried, beside Standalone or else the first one, in each scenario in
    which methods are compared; of one method beside its control; by Holm's correction for all."""
    where = compared(study)
    run = {o.method for scenario in where for o in study.in_scenario(scenario)} - {registry.POOLED}
    if not all(measures.same_data(study.in_scenario(scenario)) for scenario in where):
        return []
    reference = ALONE if ALONE in run else next(iter(registry.ordered(run)), "")
    beside = [
        (o, study.at(scenario, reference))
        for scenario in where
        for o in study.ordered(scenario)
        if o.method not in (reference, registry.POOLED)
    ] or gains.beside_controls(study)
    found = [
        Finding(o.scenario, o, base, by, study.score)
        for o, base in beside
        if base and (by := measures.paired(o.runs, base.runs, study.score))
    ]
    tested = [place for place, f in enumerate(found) if f.by.half is not None]
    judged = verdicts([found[place].by for place in tested], study.margin)
    for place, verdict in zip(tested, judged, strict=True):
        found[place] = replace(found[place], verdict=verdict)
    return found


def best_of(found: Sequence[Finding]) -> Finding:
    """The one with the largest difference."""
    return max(found, key=lambda f: f.by.mean)


def in_one(study: Study, found: Sequence[Finding]) -> list[str]:
    """What is found in a single scenario, and what could have been."""
    tested = [f for f in found if f.verdict]
    by_ending: dict[str, list[Finding]] = {ending: [] for ending in ENDINGS}
    for f in tested:
        assert f.verdict
        by_ending[f.verdict.ending].append(f)
    base, alone = found[0].reference, found[0].theirs.method == ALONE
    against = f"points of {words.gained(study.score)} against {found[0].base}"
    leads = {
        HELPS: "Helps" if alone else f"Better than {base}",
        HARMS: "Harms" if alone else f"Worse than {base}",
        SAME: f"No difference that matters, within ± {100 * study.margin:g} points",
        OPEN: "Cannot tell",
    }
    told: list[str] = []
    for ending, of in by_ending.items():
        each: list[str] = []
        for f in of:
            figures = f.in_points
            if not told and not each:  # the first one says what they are
                seeds = len(f.by.values)
                figures = (
                    f"{100 * f.by.mean:+.2f} {against} (95 % interval {f.interval}, {seeds} seeds)"
                )
            each.append(f"{f.ours.title} {figures}{_remark(f, ending)}")
        if each:
            told.append(f"{leads[ending]}: {'; '.join(each)}.")
    more = _corrected(tested)
    if few := [f.ours.title for f in found if not f.verdict]:
        more += (
            f" Of {words.listed(few)} nothing is claimed, with fewer than {FEWEST} seeds in common."
        )
    return [" ".join(told), more + _power(best_of(tested), study.margin, named=len(tested) > 1)]


def in_several(study: Study, found: Sequence[Finding]) -> list[str]:
    """What is found in several: in how many each method has which ending."""
    tested = [f for f in found if f.verdict]
    told = []
    for title in dict.fromkeys(f.ours.title for f in tested):
        ends = Counter(f.verdict.ending for f in tested if f.verdict and f.ours.title == title)
        told.append(f"{title} {', '.join(f'{e} in {ends[e]}' for e in ENDINGS if ends[e])}")
    where = f"{len({str(f.scenario) for f in found})} scenarios"
    few = len(found) - len(tested)
    return [
        f"By {words.gained(study.score)} against {found[0].base}, in {where}: {'; '.join(told)}."
        f"{_corrected(tested)}"
        + (f" {few} differences have fewer than {FEWEST} seeds, and no verdict." if few else "")
    ]


def pooled(study: Study, found: Sequence[Finding]) -> str:
    """What pooling all rows gains at most, and how much of it the best method gets, where pooling's
    own gain is sure."""
    best = best_of(found)
    all_rows = study.at(best.scenario, registry.POOLED)
    by = all_rows and measures.paired(all_rows.runs, best.theirs.runs, study.score)
    if not by or by.half is None or best.theirs.method != ALONE:
        return ""
    low, high = 100 * (by.mean - by.half), 100 * (by.mean + by.half)
    text = (
        f" One model of all sites' rows together (Pooled) differs by {100 * by.mean:+.2f} points"
        f" from training alone ({low:+.2f} to {high:+.2f})"
    )
    if by.sign < 1:
        return f"{text}, so nothing is sure to be won."
    if best.by.mean <= 0:
        return f"{text}; on average no method gets any of that."
    return (
        f"{text}; of that {best.ours.title} gets on average {100 * best.by.mean / by.mean:.0f} %."
    )


def _remark(f: Finding, ending: str) -> str:
    """What is to be known of this ending."""
    assert f.verdict
    if f.by.constant:
        return ", the same in all seeds: no claim"
    if ending == SAME:
        small = ("", ", a small gain is likely", ", a small loss is likely")[f.verdict.sign]
        wide = f.rows is not None and abs(f.by.mean) + f.rows > f.verdict.margin
        return small + ("; with other test rows of the same sites it could matter" if wide else "")
    if ending in (HELPS, HARMS) and f.rows is not None and f.rows >= abs(f.by.mean):
        return ", which other test rows of the same sites could reverse"
    return ""


def _corrected(tested: Sequence[Finding]) -> str:
    if len(tested) < 2:
        return ""
    return (
        f" Intervals are wider by Holm's correction for the {len(tested)} differences tried"
        f" ({', '.join(dict.fromkeys(f.ours.title for f in tested))})."
    )


def _power(f: Finding, margin: float, *, named: bool) -> str:
    """How small a difference could have been seen, and by what others would be."""
    if not f.verdict or f.by.constant:
        return ""
    low, high = f.verdict.sees_between
    text = (
        f" A comparison like this one{f' (of {f.ours.title})' if named else ''} sees a difference"
        f" of about {_short(f.verdict.sees)} points (from {_short(low)} to {_short(high)}, since"
        " the spread is estimated) in four of five cases"
    )
    seeds, rows = needed(f)
    if f.verdict.sees > margin > 0:
        either = [f"{seeds:,} seeds"] if seeds else []
        either += [f"{rows:,} test rows a site"] if rows else []
        more = " or ".join(either) or "no thousand seeds"
        text += f"; {more} would see {100 * margin:g}"
    text += "."
    if f.rows is not None:
        limits = (f.verdict.half, "seeds"), (f.rows, "test rows")
        (least, then), (most, first) = sorted(limits)
        text += f" {first.capitalize()} limit it (± {_short(most)} points)"
        text += f" more than {then} (± {_short(least)})."
    return text


def needed(f: Finding) -> tuple[int | None, int | None]:
    """The seeds, or the test rows a site, that would see the margin."""
    assert f.verdict
    rows = f.of_rows and f.verdict.rows_for_margin(f.of_rows, f.rows_a_site)
    return f.verdict.seeds_for_margin, rows or None


def table(study: Study, found: Sequence[Finding]) -> Table:
    """A row a method in each scenario, with what the first sentence is made of."""
    rows = []
    for f in found:
        ending = f.verdict.ending if f.verdict else f"– (fewer than {FEWEST} seeds)"
        rows.append(
            {
                **words.names(f.ours),
                "seeds": str(len(f.by.values)),
                f"gain over {f.reference}, points": f.in_points,
                "verdict": f"**{ending}**" if ending in (HELPS, HARMS) else ending,
            }
        )
    note = (
        f"{words.score_first(study.score)} minus the reference's, at the round of the best"
        " validation, paired by seed. In this order: no difference that matters, if the"
        f" interval lies within the margin, ± {100 * study.margin:g} points (`verdict.margin`);"
        " helps or harms, if it excludes 0; otherwise cannot tell. Intervals are 95 % t-intervals,"
        " of several differences by Holm's correction."
    )
    return Table("verdict", "Verdict", rows, note)


def power(found: Sequence[Finding]) -> Table:
    """A row a method in each scenario, with what the comparison could have seen."""
    rows = []
    for f in found:
        if (v := f.verdict) is None or f.by.constant:
            continue
        seeds, more = needed(f)
        row = {
            **words.names(f.ours),
            "± by seeds": _short(v.half),
            "± by test rows": "–" if f.rows is None else _short(f.rows),
            "sees, points": _short(v.sees),
            "from": _short(v.sees_between[0]),
            "to": _short(v.sees_between[1]),
            "seeds for the margin": f"{seeds:,}" if seeds else "–",
            "test rows a site for the margin": f"{more:,}" if more else "–",
        }
        rows.append(row)
    note = (
        "Points. `± by seeds`: half the verdict's interval. `± by test rows`: the same models on"
        " other test rows of the same sites (bootstrap of rows within sites, paired, a row that"
        " several seeds tested being one). `sees`: the true difference that such a comparison finds"
        " in four of five cases, `from` and `to` by the 95 % interval of the spread."
    )
    return Table("power", "What this comparison could have seen", rows, note)


def _short(share: float) -> str:
    """Points with two digits that matter."""
    return f"{100 * share:.2g}" if share < 1 else f"{100 * share:.0f}"
