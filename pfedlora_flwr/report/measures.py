"""The measures of a report, from completed runs.

Intervals are 95 % t-intervals over seeds; of fewer than three there is none.
Differences are paired: the same seed means the same partition and the same sampled clients.

Communication and computation are counted until the first round whose mean test accuracy reaches the
target (90 %; 50 % on CIFAR-100; or the key `target-accuracy`; or what the report is asked for), in
two conventions:

- `full`: parameters up and down of all sampled clients, and the operations that all of them
  executed in training;
- `paper`: the rounds to the target × what one client uploads in a visit (the mean over visits), and
  the rounds to the target × 2·MAC of one image through one client's model (the mean over clients).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from scipy.stats import t as student

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.data.local import OWN
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models.cost import sample_flops
from pfedlora_flwr.runs.completed import Run
from pfedlora_flwr.training.metrics import place, worth

FEWEST = 3
"""Seeds that make an interval: two give one that is 9 standard deviations wide to either side."""
_ROUNDING = 1e-12
"""Of accuracies in [0, 1]: what is narrower has no width but that of rounding."""


@dataclass(frozen=True)
class Estimate:
    """Values of seeds, their mean and the half-width of its 95 % interval (None for fewer than
    three)."""

    values: tuple[float, ...]
    mean: float
    half: float | None

    @property
    def sign(self) -> int:
        """1 where the whole interval is above 0, −1 where it is below; 0 where it holds 0, has no
        width, or there is none."""
        if self.half is None or self.half < _ROUNDING:
            return 0
        return (self.mean - self.half > 0) - (self.mean + self.half < 0)

    @property
    def constant(self) -> bool:
        """Whether all seeds have the same value: how far others would be from it is not known, so
        nothing is claimed of it."""
        return self.half is not None and self.half < _ROUNDING


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean with its t-interval; None for no values."""
    if not values:
        return None
    n, half = len(values), None
    if n >= FEWEST:
        half = bound(n, 0.05) * statistics.stdev(values) / math.sqrt(n)
    return Estimate(tuple(values), statistics.fmean(values), half)


@cache
def bound(seeds: int, level: float) -> float:
    """What |t| is beyond in this share of comparisons without a difference."""
    return float(student.ppf(1 - level / 2, seeds - 1))


def figure(told: Mapping[str, Any], place: str) -> Any:
    """What stands in a result or an audit at `part/name`; None where it has no such field. A name
    can have a "/" itself, as a class in a score's has."""
    if place in told:
        return told[place]
    parts = ((name, told[name]) for name in told if place.startswith(f"{name}/"))
    name, part = max(parts, key=lambda found: len(found[0]), default=("", None))
    return figure(part, place.removeprefix(f"{name}/")) if part else None


def value(run: Run, place: str) -> Any:
    """What stands there in the run's result."""
    return figure(run.result, place)


def over_seeds(outcome: Outcome, place: str) -> Estimate | None:
    """A number in the results of its runs; None where a run of an older version lacks it."""
    values = [value(run, place) for run in outcome.runs.values()]
    return None if None in values else estimate(values)


def accuracy(runs: Mapping[int, Run]) -> Estimate | None:
    """The headline of these runs, by seed."""
    return estimate([run.accuracy for run in runs.values()])


def paired(
    ours: Mapping[int, Run], theirs: Mapping[int, Run], score: str = "accuracy"
) -> Estimate | None:
    """Our score minus theirs, so that more is better, over the seeds that both have; None without
    one, or where one of them had other data."""
    if not _one_partition(ours, theirs):
        return None
    where = f"{place(score)}/at_best_validation"
    told = ({k: value(run, where) for k, run in runs.items()} for runs in (ours, theirs))
    known = ({k: worth(score, v) for k, v in of.items() if v is not None} for of in told)
    return difference(*known)


def difference(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> Estimate | None:
    """Our numbers minus theirs, over the keys (seeds) that both have."""
    return estimate([ours[key] - theirs[key] for key in ours if key in theirs])


def win_rate(ours: Mapping[int, Run], theirs: Mapping[int, Run]) -> float | None:
    """The share of clients, over the common seeds, whose model is better at the end than under the
    other method; a tie is half a win. None without a common seed, or where one had other data."""
    if not _one_partition(ours, theirs):
        return None
    wins = [
        ((accuracy > other) + (accuracy >= other)) / 2
        for seed in ours
        if seed in theirs
        for client, accuracy in ours[seed].clients.items()
        if (other := theirs[seed].clients.get(client)) is not None
    ]
    return statistics.fmean(wins) if wins else None


def same_data(outcomes: Sequence[Outcome]) -> bool:
    """Whether, seed by seed, all methods of a scenario had the same partition."""
    return _one_partition(*(outcome.runs for outcome in outcomes))


def _one_partition(*of_methods: Mapping[int, Run]) -> bool:
    seen: dict[int, set[str]] = {}
    for runs in of_methods:
        for seed, run in runs.items():
            seen.setdefault(seed, set()).add(_data_of(run))
    return all(len(fingerprints) == 1 for fingerprints in seen.values())


def _data_of(run: Run) -> str:
    """The partition, which has the values; of sites' own data how many test samples each has."""
    told = run.result["partition"]
    if told == OWN:
        told += str(sorted((k, row["test"]) for k, row in run.result["per_client"].items()))
    return str(told)


@dataclass(frozen=True)
class Cost:
    """What one run took until the target accuracy, in both conventions. Operations are
    floating-point, 2 a multiply-add."""

    rounds: int
    parameters: int
    bytes: int
    flops: float  # nan where clients withhold them
    paper_parameters: float
    paper_flops: float  # nan where the number of classes is not known here


def cost(run: Run) -> Cost | None:
    """The cost to the target; None where the run did not reach it."""
    full = run.to_target
    if full["rounds"] is None:
        return None
    assert full["parameters"] is not None
    assert full["bytes"] is not None
    assert full["flops"] is not None
    rows = [row for row in run.rounds if 0 < row["round"] <= full["rounds"]]
    visits = sum(len(row["admitted"]) for row in rows)
    upload = sum(row["parameters_up"] for row in rows) / visits if visits else 0.0
    paper = full["rounds"] * upload, full["rounds"] * _sample_flops(run)
    flops = full["flops"] if tells_operations(run) else math.nan
    return Cost(full["rounds"], full["parameters"], full["bytes"], flops, *paper)


def tells_operations(run: Run) -> bool:
    """Whether the clients told what they computed."""
    return not run.experiment.hides_clients and run.result["flops"] > 0


def _sample_flops(run: Run) -> float:
    try:
        return sample_flops(run.experiment, run.setup.task)
    # a dataset whose name does not tell its classes, and whose files are not here
    except UserError:
        return math.nan


@dataclass(frozen=True)
class Ratios:
    """How many times more one method took than another to the target, over the seeds in which both
    reached it."""

    parameters: float
    flops: float
    paper_parameters: float
    paper_flops: float


def ratios(more: Mapping[int, Run], less: Mapping[int, Run]) -> Ratios | None:
    """The ratios of the summed costs; None where no seed saw both at the target."""
    pairs = [
        (a, b)
        for seed in less
        if seed in more and (a := cost(more[seed])) and (b := cost(less[seed]))
    ]
    if not pairs:
        return None

    def ratio(name: str) -> float:
        below = sum(getattr(b, name) for _, b in pairs)
        return sum(getattr(a, name) for a, _ in pairs) / below if below else math.inf

    return Ratios(
        ratio("parameters"), ratio("flops"), ratio("paper_parameters"), ratio("paper_flops")
    )
