"""The statistics of a verdict, against simulations and figures worked out by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import nct
from scipy.stats import t as student

from pfedlora_flwr.report.measures import estimate
from pfedlora_flwr.report.verdict import Part, Verdict, detectable, redrawn, verdicts


def judged(values: list[float], *others: list[float], margin: float = 0.02) -> Verdict:
    found = [e for e in map(estimate, (values, *others)) if e]
    return verdicts(found, margin)[0]


@pytest.mark.parametrize(
    ("values", "ending", "sign"),
    [
        ([0.049, 0.05, 0.051], "helps", 1),
        ([-0.049, -0.05, -0.051], "harms", -1),
        ([-0.005, 0.0, 0.005], "no difference that matters", 0),
        ([0.009, 0.01, 0.011], "no difference that matters", 1),  # a small gain is likely
        ([0.0, 0.0, 0.0], "cannot tell", 0),  # as three seeds of a few test rows have it
        ([-0.05, 0.05, 0.06], "cannot tell", 0),
        ([0.05, 0.05, 0.05], "cannot tell", 1),  # of how far others would be nothing is known
    ],
)
def test_a_difference_has_one_of_four_endings(values: list[float], ending: str, sign: int) -> None:
    assert (judged(values).ending, judged(values).sign) == (ending, sign)


def test_holm_holds_the_smallest_p_against_the_strictest_level() -> None:
    clear, near, far = [0.05, 0.051, 0.049], [0.01, 0.012, 0.006], [-0.03, 0.04, 0.01]
    levels = [v.level for v in verdicts([e for e in map(estimate, (near, far, clear)) if e], 0.0)]
    assert levels == [0.05 / 2, 0.05 / 2, 0.05 / 3]  # 0.034 is above 0.025: far follows
    assert judged(near).ending != judged(near, far, clear, margin=0.0).ending == "cannot tell"


@pytest.mark.parametrize(("times", "low", "high"), [(1.0, 0.77, 0.83), (0.0, 0.0, 0.03)])
def test_what_a_comparison_can_see_it_finds_in_four_of_five_cases(
    times: float, low: float, high: float
) -> None:
    """And where there is nothing one in twenty claims a difference, as many up as down."""
    spread, seeds = 0.03, 5
    true = times * detectable(spread, seeds)
    drawn = np.random.default_rng(1).normal(true, spread, (2000, seeds))
    found = [e for row in drawn if (e := estimate(row.tolist()))]
    ends = Counter(Verdict(e, 0.05, margin=0.0).ending for e in found)
    assert low < ends["helps"] / 2000 < high
    if not times:
        assert 0.04 <= (ends["helps"] + ends["harms"]) / 2000 <= 0.06


def test_the_power_is_that_of_the_non_central_t() -> None:
    shift = detectable(1.0, 10) * 10**0.5
    assert nct.sf(student.ppf(0.975, 9), 9, shift) == pytest.approx(0.8, abs=1e-5)


def test_more_seeds_or_more_test_rows_would_see_the_margin() -> None:
    found = judged([0.01, 0.06, -0.02, 0.05, 0.0])
    low, high = found.sees_between
    assert low < found.sees < high
    seeds = found.seeds_for_margin
    assert seeds
    assert detectable(found.deviation, seeds) <= 0.02 < detectable(found.deviation, seeds - 1)
    rows = found.rows_for_margin(found.deviation, 10)  # all of the spread is the rows'
    assert rows
    assert detectable(found.deviation * (10 / rows) ** 0.5, 5) == pytest.approx(0.02, rel=0.01)
    assert found.rows_for_margin(0.5 * found.deviation, 10) is None  # the other half stays


@pytest.mark.slow
def test_other_test_rows_are_within_the_interval_of_the_bootstrap() -> None:
    """Four sites, of whose 200 rows each of three seeds tests 20; a row that both models
    find hard is so in every seed."""
    rng, true, trials = np.random.default_rng(0), 0.15, 300
    covered = 0
    for _ in range(trials):
        sites = []
        for _ in range(4):
            hard, gains = rng.random(200) < 0.3, rng.random(200) < 2 * true
            parts = []
            for _ in range(3):
                rows = rng.choice(200, 20, replace=False)
                luck = rng.random(20) < 0.5
                theirs = ~hard[rows] & ~gains[rows] | hard[rows] & luck & ~gains[rows]
                ours = theirs | gains[rows] & (rng.random(20) < 0.5)
                parts.append(
                    Part(rows, np.zeros(20, int), ours.astype(float), theirs.astype(float))
                )
            sites.append(parts)
        mean = np.mean([(part.ours - part.theirs).mean() for parts in sites for part in parts])
        covered += abs(mean - true) <= 1.96 * redrawn(sites, draws=120).std()
    assert 0.93 <= covered / trials <= 0.97


def test_the_bootstrap_takes_classes_alike_and_rows_of_several_seeds_as_one() -> None:
    rows, ones, none = np.arange(20), np.ones(20), np.zeros(20)
    rare = np.array([1] * 4 + [0] * 16)
    part = Part(
        rows, rare, (rare == 1).astype(float), none
    )  # right where the class is the rare one
    by_row, by_class = (redrawn([[part]], by_class=by_class) for by_class in (False, True))
    assert by_row.mean() == pytest.approx(0.2, abs=0.01)
    assert by_class.mean() == pytest.approx(0.5, abs=0.01)
    twice = redrawn([[part, part]])
    assert twice.std() == pytest.approx(by_row.std())
    assert redrawn([[Part(rows, rare, ones, ones)]]).std() == 0
