"""ε of the Gaussian mechanism with participations counted, by dp-accounting's accountant of privacy
loss distributions (Google; Koskela et al. 2020, arXiv 1906.03049).

Of whole clients: a client's loss comes from the rounds that it took part in, and from no others.
Who is sampled is a public function of the seed, so nothing is amplified. Neighbours: a client's
updates, or zeros in their place, in all rounds.

Of records: a record's loss comes from the steps of its own client, whose batches are secret draws.
Neighbours: a training record, or in its place one whose gradients are zero."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

from pfedlora_flwr.errors import needed
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.rng import sample_clients

_CELLS = 2e4
"""Of the grid of privacy losses: it gets coarser for larger ones, always upwards."""
_LARGE = 1000.0
"""√steps/z beyond which nothing is hidden, and the grid cannot be computed: a closed form does."""
_MANY, _LITTLE = 100_000, 0.05
"""Steps beyond which the grid takes minutes, and rounding adds up: Rényi's bound is above it, and
is computed for at least so much noise."""
_ORDERS = [*range(2, 65), *(2**i for i in range(7, 13))]
_CLOSE = 1e-4
"""How near the found z is to the smallest one, relative."""


def epsilon(noise: float, participations: int, delta: float) -> float:
    """ε at δ of one client after so many rounds with noise of standard deviation `noise` times the
    clip; infinite without noise. Never below the exact value.

    Raises UserError if dp-accounting is not installed."""
    return record_epsilon(noise, 1, participations, delta)


@lru_cache(maxsize=4096)
def record_epsilon(noise: float, parts: int, steps: int, delta: float) -> float:
    """ε at δ of one record after so many steps with such noise, each of which takes it with
    probability 1/parts; infinite without noise. Never below the exact value.

    Raises UserError if dp-accounting is not installed."""
    if not steps:
        return 0.0
    if not noise:
        return math.inf
    told = "dp needs dp-accounting", "'pfedlora-flwr[dp]'"
    dp, pld = (needed(name, *told) for name in ("dp_accounting", "dp_accounting.pld"))
    mu = math.sqrt(steps) / noise
    step = dp.GaussianDpEvent(noise)
    if mu > _LARGE or (parts > 1 and steps > _MANY):
        # by zero-concentrated privacy (Bun and Steinke 2016, Proposition 1.3)
        closed = mu * (mu / 2 + math.sqrt(2 * math.log(1 / delta)))
        if parts == 1 or noise < _LITTLE:
            return closed
        renyi = needed("dp_accounting.rdp", *told).RdpAccountant(_ORDERS)
        renyi.compose(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(1 / parts, step), steps))
        return min(closed, float(renyi.get_epsilon(delta)))
    largest = 0.0
    if parts > 1:  # that of the limit of many steps (Bu et al. 2020, arXiv 1911.11607)
        mu = min(mu, math.sqrt(steps * math.expm1(min(noise**-2, 700.0))) / parts)
        # of a single step, at ten standard deviations, which may be far larger
        unsampled = 10 / noise + 0.5 / noise**2
        largest = unsampled + math.log(math.exp(-unsampled) * (parts - 1) + 1) - math.log(parts)
        step = dp.PoissonSampledDpEvent(1 / parts, step)
    accountant = pld.PLDAccountant(
        dp.NeighboringRelation.REPLACE_SPECIAL,
        value_discretization_interval=max(mu**2 + 20 * mu, largest) / _CELLS,
    )
    accountant.compose(dp.SelfComposedDpEvent(step, steps))
    return float(accountant.get_epsilon(delta))


def finite(epsilon: float) -> float | None:
    """For JSON, which has no infinity."""
    return epsilon if math.isfinite(epsilon) else None


@lru_cache(maxsize=256)
def noise_for(wanted: float, participations: int, delta: float) -> float:
    """z, just above the smallest whose ε at δ after so many participations is at most `wanted`."""
    middle = 0.5 * math.log(participations)
    return _least(wanted, lambda noise: epsilon(noise, participations, delta), middle)


@lru_cache(maxsize=4096)
def record_noise_for(wanted: float, parts: int, steps: int, delta: float) -> float:
    """The same for a record after so many steps."""
    return _least(wanted, lambda noise: record_epsilon(noise, parts, steps, delta), 0.0)


def _least(wanted: float, spent: Callable[[float], float], middle: float) -> float:
    """Just above the smallest z for which at most `wanted` is spent; middle: a guess at log z."""
    from scipy.optimize import brentq  # at its first use: it takes a quarter of a second

    def above(logarithm: float) -> float:
        return math.log(max(spent(math.exp(logarithm)), 1e-12) / wanted)

    low, high = middle, middle
    while above(low) < 0:
        low -= 1
    while above(high) > 0:
        high += 1
    noise = math.exp(brentq(above, low, high, xtol=_CLOSE) if low < high else middle)
    while spent(noise) > wanted:
        noise *= 1 + _CLOSE
    return noise


@lru_cache(maxsize=64)
def planned(e: Experiment, first: int = 1) -> dict[int, int]:
    """By client, its participations in the rounds from `first` on, if nobody fails."""
    counts = Counter[int]()
    for round in filter(e.releases, range(first, e.rounds + 1)):
        counts.update(sample_clients(e.seed, round, range(e.trained_clients), e.sampled))
    return dict(counts)


def planned_noise(e: Experiment) -> float:
    """z of a run from its start: as given, or such that its plan spends `dp.epsilon`."""
    if e.dp.noise is not None:
        return e.dp.noise
    assert e.dp.epsilon is not None
    return noise_for(e.dp.epsilon, max(planned(e).values()), e.dp.delta)
