"""What a client of a method of sums chooses by its own samples, each as if it were in no sum: the
weight of its class shares, and a private correction. Nothing of it is sent.

Symbols as in sums.py; a score S_ic of sample i and class c is without sample i."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

WEIGHTS = (0.5, 1.0, 0.2, 2.0, 5.0, 0.0)
"""Of the log shares, in units of the scores' spread; the first of ties is taken."""
TEMPERATURES = (1.0, 2.0, 4.0, 8.0)
"""1/τ in units of the same."""
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""λ of the correction; beside them none at all."""
_MORE = 0.1
"""Samples of every class that are added to those of the client."""


def spread_of(scores: Tensor, asked: Tensor) -> Tensor:
    """The standard deviation of scores [n, C] among the classes asked, within samples."""
    chosen = scores[:, asked]
    return (chosen - chosen.mean(1, keepdim=True)).square().mean().sqrt().clamp(min=1e-9)


def own_priors(
    scores: Tensor, labels: Tensor, counts: Tensor, known: Tensor, spread: Tensor
) -> Tensor:
    """w·log((n_c + 0.1) / (n + 0.1 C)) of the client's own n_c, [C], with the w that gets most of
    its samples right.

    scores: S, [n, C]."""
    held = one_hot(labels, len(counts)).double()
    without = torch.log(counts - held + _MORE) - torch.log(counts.sum() - 1 + _MORE * len(counts))

    def right(weight: float) -> int:
        shifted = (scores + weight * spread * without).masked_fill(~known, -torch.inf)
        return int((shifted.argmax(1) == labels).sum())

    shares = torch.log(counts + _MORE) - torch.log(counts.sum() + _MORE * len(counts))
    return max(WEIGHTS, key=right) * spread * shares


def correction(
    x: Tensor, scores: Tensor, labels: Tensor, asked: Tensor, spread: Tensor
) -> tuple[Tensor, Tensor]:
    """τ and W, [C, d], of softmax(τ S) + W x: the ridge regression of one-hot − softmax(τ S) on x
    [n, d]. τ and λ are those of the least square error of the samples, each left out of the
    regression, whose residual is e_i / (1 − h_ii); W may be 0.

    scores: S, [n, C]."""
    left, values, right = torch.linalg.svd(x, full_matrices=False)
    truth, squares = one_hot(labels, scores.shape[1]).double(), values.square()
    best, found = torch.inf, (scores.new_zeros(()), scores.new_zeros(scores.shape[1], x.shape[1]))
    for temperature in TEMPERATURES:
        scale = temperature / spread
        shares = torch.softmax((scale * scores).masked_fill(~asked, -torch.inf), 1)
        rest = truth - shares
        along = left.T @ rest
        for strength in (None, *STRENGTHS):
            kept = squares / (squares + (strength or 1) * len(x)) * (strength is not None)
            fit = left @ (kept[:, None] * along)
            taken = left.square() @ kept
            error = float(((rest - fit) / (1 - taken)[:, None]).square().sum())
            if error < best:
                weight = right.T @ ((kept / values.clamp(min=1e-12))[:, None] * along)
                best, found = error, (scale, weight.T)
    return found
