"""ε of the Gaussian mechanism with participations counted, by dp-accounting's accountant of privacy
loss distributions (Google; Koskela et al. 2020, arXiv 1906.03049).

A client's loss comes from the rounds that it took part in, and from no others: who is sampled is a
public function of the seed, so nothing is amplified. Neighbours: a client's updates, or zeros in
their place, in all rounds."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

from scipy.optimize import brentq

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.rng import sample_clients

_CELLS = 2e4
"""Of the grid of privacy losses: it gets coarser for larger ones, always upwards."""
_CLOSE = 1e-4
"""How near the found z is to the smallest one, relative."""


@lru_cache(maxsize=4096)
def epsilon(noise: float, participations: int, delta: float) -> float:
    """ε at δ of one client after so many rounds with noise of standard deviation `noise` times the
    clip; infinite without noise. Never below the exact value.

    Raises UserError if dp-accounting is not installed."""
    if not participations:
        return 0.0
    if not noise:
        return math.inf
    try:
        from dp_accounting import GaussianDpEvent, SelfComposedDpEvent  # a second to import
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise UserError(
            "dp needs dp-accounting, which is not installed: pip install 'pfedlora-flwr[dp]'"
        ) from None
    mu = math.sqrt(participations) / noise
    accountant = PLDAccountant(value_discretization_interval=(mu**2 + 20 * mu) / _CELLS)
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise), participations))
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=256)
def noise_for(wanted: float, participations: int, delta: float) -> float:
    """z, just above the smallest whose ε at δ after so many participations is at most `wanted`."""

    def above(logarithm: float) -> float:
        found = epsilon(math.exp(logarithm), participations, delta)
        return math.log(max(found, 1e-12) / wanted)

    middle = 0.5 * math.log(participations)
    low, high = middle, middle
    while above(low) < 0:
        low -= 1
    while above(high) > 0:
        high += 1
    noise = math.exp(brentq(above, low, high, xtol=_CLOSE) if low < high else middle)
    while epsilon(noise, participations, delta) > wanted:
        noise *= 1 + _CLOSE
    return noise


@lru_cache(maxsize=64)
def planned(e: Experiment, first: int = 1) -> dict[int, int]:
    """By client, its participations in the rounds from `first` on, if nobody fails."""
    counts = Counter[int]()
    for round in range(first, e.rounds + 1):
        counts.update(sample_clients(e.seed, round, range(e.trained_clients), e.sampled))
    return dict(counts)


def planned_noise(e: Experiment) -> float:
    """z of a run from its start: as given, or such that its plan spends `dp.epsilon`."""
    if e.dp_noise is not None:
        return e.dp_noise
    assert e.dp_epsilon is not None
    return noise_for(e.dp_epsilon, max(planned(e).values()), e.dp_delta)
