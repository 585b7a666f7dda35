"""How well an attack's scores separate positives from negatives: AUC, its interval, and the
true-positive rate at few false positives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score, roc_curve

from pfedlora_flwr.rng import numpy_generator
from pfedlora_flwr.runs.audits import Attack, BestAttack

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_BOOTSTRAPS = 2000
_FEWEST = 5
"""Clients of an interval: samples of fewer are much alike."""
_ALARMS = 0.01
"""The share of what is not so that may be taken for it."""
RESOLVED = round(1 / _ALARMS)
"""Negatives below which that share is none."""


@dataclass(frozen=True)
class Part:
    """What is scored of one client: whether it is so, and the scores, both [n]; a higher score says
    so."""

    truth: Bools
    scores: Floats


def standardised(values: Floats) -> Floats:
    """Values of one upload, [n], with mean 0 and standard deviation 1 (0 where they are all equal),
    so that uploads can be pooled."""
    spread = float(values.std())
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)


def measure(parts: Sequence[Part], seed: int, *, one_source: bool = False) -> Attack | None:
    """The attack on all clients, pooled; None where everything is so, or nothing is.

    one_source: all scores are of one thing that these very clients have made together, such as a
    sum: there are no other clients of whom it could have been made, and no interval. Nor is there
    one of fewer than five clients.

    The interval is a bootstrap's over clients, because what is scored of one client is not
    independent: percentiles of the AUC of samples of as many clients, with replacement, each with
    its whole part. Where all AUCs are 1 it has no width: it says nothing of other data."""
    truth = np.concatenate([part.truth for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    if truth.all() or not truth.any():
        return None
    alarms, found, _ = roc_curve(truth, scores, drop_intermediate=False)
    low, high = (
        (None, None)
        if one_source or len(parts) < _FEWEST
        else map(float, np.percentile(_bootstrap(parts, seed), (2.5, 97.5)))
    )
    return {
        "auc": float(roc_auc_score(truth, scores)),
        "tpr_at_1pct": float(found[alarms <= _ALARMS].max()),
        "low": low,
        "high": high,
        "positives": int(truth.sum()),
        "negatives": int((~truth).sum()),
    }


def best(attacks: Mapping[str, Attack]) -> BestAttack | None:
    """The attack with the largest AUC, the first of ties; None of none. Choosing it afterwards
    favours the attacker."""
    if not attacks:
        return None
    name = max(attacks, key=lambda name: attacks[name]["auc"])
    return {**attacks[name], "attack": name}


def _bootstrap(parts: Sequence[Part], seed: int) -> Floats:
    """AUCs of samples of the clients. With w_k, how often client k was drawn, an AUC is Σ w_k w_l
    wins_kl / (Σ w_k p_k · Σ w_l n_l): wins_kl counts the pairs of one of k's positives and one of
    l's negatives in which the first scores higher, and half of the ties."""
    n = len(parts)
    positives = [part.scores[part.truth] for part in parts]
    scores, owners = np.concatenate(positives), np.repeat(np.arange(n), [len(p) for p in positives])
    wins = np.empty((n, n))
    for other, part in enumerate(parts):
        negatives = np.sort(part.scores[~part.truth])
        below = (
            np.searchsorted(negatives, scores, "left") + np.searchsorted(negatives, scores, "right")
        ) / 2
        wins[:, other] = np.bincount(owners, below, n)
    p = np.array([part.truth.sum() for part in parts])
    # [B, n]
    drawn = numpy_generator(seed, "audit/bootstrap").multinomial(n, np.full(n, 1 / n), _BOOTSTRAPS)
    pairs = (drawn @ p) * (drawn @ np.array([(~part.truth).sum() for part in parts]))
    return ((drawn @ wins) * drawn).sum(1)[pairs > 0] / pairs[pairs > 0]
