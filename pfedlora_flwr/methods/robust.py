"""Means that a few liars among the clients cannot move far: by element the median and the trimmed
mean (Yin, Chen, Ramchandran, Bartlett, ICML 2018, arXiv 1803.01498), and Krum (Blanchard, El
Mhamdi, Guerraoui, Stainer, NeurIPS 2017).

Symbols: n uploads, or n rows of a class, of which at most F are lies. All weigh the same, since n_k
is a claim, too."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods.method import ByClient, Tensors


@dataclass(frozen=True)
class Rule:
    """What takes the mean's place. kind: median, trimmed-mean or krum. liars: F."""

    kind: str
    liars: int

    @property
    def fewest(self) -> int:
        """The smallest n of which F may be lies."""
        return self.needs(self.liars)

    def needs(self, liars: int) -> int:
        """The same for another F."""
        return 2 * liars + (3 if self.kind == "krum" else 1)

    def middle(self, values: Tensor) -> Tensor:
        """Of values [n, …], by element: the mean without the largest and the smallest F, or as the
        median without all but the middle ones; float64."""
        n = len(values)
        most = (n - 1) // 2
        cut = most if self.kind == "median" else min(self.liars, most)
        return values.double().sort(0).values[cut : n - cut].mean(0)

    def merged(self, uploads: ByClient) -> Tensors:
        """Of uploads of one layout: `middle` tensor by tensor, each in its own dtype, or the one
        that Krum takes."""
        if self.kind == "krum":
            return uploads[krum(uploads, self.liars)].tensors
        return {
            name: self.middle(torch.stack([u.tensors[name] for u in uploads.values()])).to(t.dtype)
            for name, t in next(iter(uploads.values())).tensors.items()
        }

    def rows(self, values: Tensor, classes: Tensor) -> Tensors:
        """`classes` and `means`, float32, of values [m, d] of classes [m]: `middle` of the rows of
        each class that has enough of them."""
        ids, counts = classes.unique(return_counts=True)
        held = ids[counts >= self.fewest]
        means = [self.middle(values[classes == c]).float() for c in held]
        return {"classes": held, "means": torch.stack(means) if means else values[:0].float()}


def krum(uploads: ByClient, liars: int) -> int:
    """The client whose floating-point values, all tensors together, have the smallest sum of
    squared distances to their n − F − 2 nearest; of equals the first."""
    flat = torch.stack(
        [
            torch.cat([t.double().flatten() for t in u.tensors.values() if t.is_floating_point()])
            for u in uploads.values()
        ]
    )
    apart = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
    nearest = max(1, len(uploads) - liars - 2)
    scores = apart.sort(1).values[:, 1 : nearest + 1].sum(1)
    return list(uploads)[int(scores.argmin())]


def rule_of(e: Experiment) -> Rule | None:
    """What `aggregation` puts in the mean's place; None where it is the mean."""
    return None if e.aggregation == "mean" else Rule(e.aggregation, e.aggregation_liars)
