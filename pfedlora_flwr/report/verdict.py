"""The statistics of a verdict: whether a difference between two methods matters, what a comparison
of this size could have seen, and what other test rows would have said.

Differences are of seeds, and paired: their interval is Student's. Differences and margins are
shares, in [−1, 1].
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import chi2, norm
from scipy.stats import t as student

from pfedlora_flwr.report.measures import FEWEST, Estimate, bound
from pfedlora_flwr.rng import numpy_generator

ALPHA, POWER = 0.05, 0.8
ENDINGS = HELPS, HARMS, SAME, OPEN = ("helps", "harms", "no difference that matters", "cannot tell")
_MOST_SEEDS = 1000
_DRAWS = 2000
_NODES = 200
Indices = NDArray[np.int64]
Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """What the seeds say of one difference.

    by: the difference, with its own 95 % interval. level: what the verdict's interval leaves out,
    0.05 or, of several methods tried, less. margin: a difference that does not matter yet.
    """

    by: Estimate
    level: float
    margin: float

    @cached_property
    def half(self) -> float:
        """The half-width of the verdict's interval."""
        n = len(self.by.values)
        return bound(n, self.level) * self.deviation / math.sqrt(n)

    @cached_property
    def deviation(self) -> float:
        """The standard deviation of the seeds' differences."""
        return float(np.std(self.by.values, ddof=1))

    @property
    def sign(self) -> int:
        """1 or −1 where the interval lies on one side of 0."""
        return (self.by.mean > self.half) - (self.by.mean < -self.half)

    @property
    def ending(self) -> str:
        """One of `ENDINGS`. Seeds that all have the same difference, be it 0, tell nothing of how
        far others would be from it."""
        if self.by.constant:
            return OPEN
        if abs(self.by.mean) + self.half <= self.margin:
            return SAME
        return {1: HELPS, -1: HARMS, 0: OPEN}[self.sign]

    @property
    def sees(self) -> float:
        """The difference that such a comparison finds in four of five cases."""
        return detectable(self.deviation, len(self.by.values), self.level)

    @property
    def sees_between(self) -> tuple[float, float]:
        """The same, at both ends of the 95 % interval of the deviation."""
        n = len(self.by.values) - 1
        ends = (math.sqrt(n / float(chi2.ppf(share, n))) for share in (0.975, 0.025))
        low, high = (self.sees * end for end in ends)
        return low, high

    @property
    def seeds_for_margin(self) -> int | None:
        """How many seeds would see the margin; None for more than a thousand."""
        deviation, level = self.deviation, self.level
        every = range(FEWEST, _MOST_SEEDS + 1)
        place = bisect_left(every, -self.margin, key=lambda n: -detectable(deviation, n, level))
        return every[place] if place < len(every) else None

    def rows_for_margin(self, of_rows: float, rows: float) -> int | None:
        """How many test rows a site would let these seeds see the margin; None where none would.

        of_rows: the deviation of a seed's difference that its test rows make, `rows` a site.
        """
        n = len(self.by.values)
        allowed = (self.margin * math.sqrt(n) / _shift(n, self.level)) ** 2
        rest = allowed - max(0.0, self.deviation**2 - of_rows**2)
        return math.ceil(of_rows**2 * rows / rest) if rest > 0 else None


def verdicts(differences: Sequence[Estimate], margin: float) -> list[Verdict]:
    """A verdict on each difference, by Holm's correction for all of them: the i-th smallest p of m
    is held against 0.05 / (m − i + 1), and so are those after the first one that is not below."""
    p = [_p(difference) for difference in differences]
    order, levels, level = np.argsort(p, kind="stable"), [0.0] * len(p), 0.0
    for place, which in enumerate(order):
        if not place or p[order[place - 1]] < level:
            level = ALPHA / (len(p) - place)
        levels[which] = level
    return [Verdict(d, own, margin) for d, own in zip(differences, levels, strict=True)]


def detectable(deviation: float, seeds: int, level: float = ALPHA) -> float:
    """The true difference that a paired t-test of so many seeds, two-sided, finds in four of five
    cases."""
    return _shift(seeds, level) * deviation / math.sqrt(seeds)


@cache
def _shift(seeds: int, level: float) -> float:
    """The non-centrality at which such a test has that power. The tails of the non-central t are
    integrated over the deviation: SciPy's are nan at few seeds."""
    n = seeds - 1
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    bounds = bound(seeds, level) * np.sqrt(chi2.ppf((nodes + 1) / 2, n) / n)

    def lacks(shift: float) -> float:
        tails = norm.cdf(shift - bounds) + norm.cdf(-shift - bounds)
        return float(weights @ tails) / 2 - POWER

    return float(brentq(lacks, 0.0, 10 + 10 * bounds.max()))


def _p(difference: Estimate) -> float:
    """Of the paired t-test; 1 where all seeds have the same difference."""
    if difference.constant:
        return 1.0
    n = len(difference.values)
    error = float(np.std(difference.values, ddof=1)) / math.sqrt(n)
    return 2 * float(student.sf(abs(difference.mean) / error, n - 1))


@dataclass(frozen=True)
class Part:
    """A site's test part in one seed, under two models. rows: [n], which of the site's rows they
    are; classes: [n]; ours, theirs: [n], in {0, 1}, whether the models are right."""

    rows: Indices
    classes: Indices
    ours: Shares
    theirs: Shares


def redrawn(
    sites: Sequence[Sequence[Part]], *, by_class: bool = False, draws: int = _DRAWS
) -> Shares:
    """The mean difference, over seeds and then sites, with other test rows from the same sites:
    [draws].

    A site's rows are drawn with replacement, with everything that they were in any seed: both
    models saw the same row, and a row that several seeds tested is one row. Of n rows, n (1 − 1/r)
    are drawn, r being those that a mean is over: n of them would make the spread too small by that.
    by_class: balanced accuracy.
    """
    generator = numpy_generator(0, "verdict/rows")
    total, counted = np.zeros(draws), np.zeros(draws)
    for parts in sites:
        known, places = np.unique(np.concatenate([p.rows for p in parts]), return_inverse=True)
        means = sum(len(np.unique(part.classes)) if by_class else 1 for part in parts)
        n, drawn = len(known), max(1, round(len(known) * (1 - means / len(places))))
        which = generator.integers(n, size=(draws, drawn)) + n * np.arange(draws)[:, None]
        weights = np.bincount(which.ravel(), minlength=n * draws).reshape(draws, n).astype(float)
        ends = np.cumsum([len(part.rows) for part in parts])[:-1]
        for part, place in zip(parts, np.split(places, ends), strict=True):
            gained, there = _mean(weights[:, place], part, by_class)
            total += gained
            counted += there
    return total / np.maximum(1, counted)


def _mean(weights: Shares, part: Part, by_class: bool) -> tuple[Shares, Shares]:
    """The part's difference with these weights of its rows, [draws, n]: [draws], 0 without a row;
    and whether it has one."""
    _, groups = np.unique(part.classes, return_inverse=True)
    of = np.eye(groups.max() + 1)[groups] if by_class else np.ones((len(groups), 1))
    held = weights @ of  # [draws, classes]
    means = weights @ (of * (part.ours - part.theirs)[:, None]) / np.maximum(1, held)
    there = (held > 0).sum(1)
    return means.sum(1) / np.maximum(1, there), (there > 0).astype(float)
