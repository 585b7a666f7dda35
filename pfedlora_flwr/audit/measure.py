"""How well an attack's scores separate positives from negatives: AUC, its interval, and the
true-positive rate at few false positives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from pfedlora_flwr.runs.audits import Attack, BestAttack

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_FEWEST = 5
"""Clients of an interval: of fewer it would say nothing."""
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


def measure(parts: Sequence[Part], *, one_source: bool = False) -> Attack | None:
    """The attack on all clients, pooled; None where everything is so, or nothing is.

    one_source: all scores are of one thing that these very clients have made together, such as a
    sum: there are no other clients of whom it could have been made, and no interval. Nor is there
    one of fewer than five clients.

    The interval is over clients, because what is scored of one client is not independent: a
    jackknife's, which leaves each out in turn, with Student's t, within [0, 1]. Where all AUCs are
    1 it has no width: it says nothing of other data."""
    truth = np.concatenate([part.truth for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    if truth.all() or not truth.any():
        return None
    alarms, found, _ = roc_curve(truth, scores, drop_intermediate=False)
    auc = float(roc_auc_score(truth, scores))
    low, high = (None, None) if one_source or len(parts) < _FEWEST else _interval(parts, auc)
    return {
        "auc": auc,
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


def _interval(parts: Sequence[Part], auc: float) -> tuple[float, float] | tuple[None, None]:
    """Of the AUC of all clients, without and with each: wins[k, l] counts the pairs of one of k's
    positives and one of l's negatives in which the first scores higher, and half of the ties. None
    where there is no AUC without one of them."""
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
    q = np.array([(~part.truth).sum() for part in parts])
    pairs = (p.sum() - p) * (q.sum() - q)
    if not pairs.all():
        return None, None
    without = (wins.sum() - wins.sum(0) - wins.sum(1) + wins.diagonal()) / pairs
    half = stats.t.ppf(0.975, n - 1) * (n - 1) * without.std(ddof=1) / np.sqrt(n)
    return max(0.0, float(auc - half)), min(1.0, float(auc + half))
