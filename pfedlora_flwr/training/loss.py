"""The loss by which methods train on labels: cross entropy, weighted by class or not, or a user's
own (`loss.weights`, `loss.function`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of logits [B, C] and labels, int64 [B]; a scalar."""
_NOW: ContextVar[Loss] = ContextVar("_NOW", default=functional.cross_entropy)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The run's loss on labels, within `trained_by`; elsewhere the mean cross entropy."""
    return _NOW.get()(logits, labels)


@contextmanager
def trained_by(loss: Loss | None) -> Iterator[None]:
    """Within it methods train by this loss; None: by the mean cross entropy."""
    token = _NOW.set(loss or functional.cross_entropy)
    try:
        yield
    finally:
        _NOW.reset(token)


def balanced(labels: Tensor, classes: int) -> Loss:
    """Cross entropy in which each class of these labels, int64 [n], has the same weight: n samples
    of C classes, n_c of one, weigh n / (C n_c) each, as in scikit-learn."""
    counts = torch.bincount(labels, minlength=classes).to(torch.float32)
    held = int((counts > 0).sum())
    return weighted(torch.where(counts > 0, len(labels) / (held * counts.clamp(min=1)), 1.0))


def weighted(weights: Tensor) -> Loss:
    """Cross entropy with a weight for each class, [C]: the weighted mean over a batch."""
    return lambda logits, of: functional.cross_entropy(logits, of, weight=weights)
