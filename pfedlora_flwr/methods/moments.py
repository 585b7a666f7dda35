"""Sums over samples: what they are, and what is solved with them. Symbols as in sums.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Self

import torch
from torch import Tensor

from pfedlora_flwr.methods.method import Tensors

_SINGULAR = 1e-7
"""A pivot of Cholesky's below this part of the largest is rounding; an eigenvalue, its square."""
Solver = Callable[[Tensor], Tensor]
"""Makes X of columns [d, m], with matrix · X = columns."""


@dataclass(frozen=True)
class Sums:
    """Sums over samples, in float64. counts: n_c, [C]. sums: S_c, [C, d]. gram: the upper triangle
    of G by rows, [d (d + 1) / 2]; empty where it is not asked for."""

    counts: Tensor
    sums: Tensor
    gram: Tensor

    @classmethod
    def of(cls, z: Tensor, labels: Tensor, classes: int, *, squares: bool) -> Self:
        """Of coordinates z [n, d], float64, and labels [n]."""
        counts, sums = z.new_zeros(classes), z.new_zeros(classes, z.shape[1])
        counts.index_add_(0, labels, torch.ones_like(z[:, 0]))
        sums.index_add_(0, labels, z)
        rows, columns = triangle(z.shape[1], z.device)
        return cls(counts, sums, (z.T @ z)[rows, columns] if squares else z.new_zeros(0))

    @classmethod
    def among(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Those that are in a state, a download, or what a client keeps."""
        return cls(tensors["counts"], tensors["sums"], tensors["gram"])

    def tensors(self) -> Tensors:
        """By name."""
        return {"counts": self.counts, "sums": self.sums, "gram": self.gram}

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(a + b for a, b in zip(self._parts, other._parts, strict=True)))

    def __sub__(self, other: Sums) -> Sums:
        return Sums(*(a - b for a, b in zip(self._parts, other._parts, strict=True)))

    @property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.counts, self.sums, self.gram

    @property
    def n(self) -> Tensor:
        return self.counts.sum()

    @property
    def known(self) -> Tensor:
        """The classes of which there is a sample, bool [C]."""
        return self.counts > 0.5  # what noise leaves of none is none

    @property
    def means(self) -> Tensor:
        """μ_c, [C, d]; 0 for a class without a sample."""
        return torch.where(self.known, 1 / self.counts, 0.0)[:, None] * self.sums

    @property
    def matrix(self) -> Tensor:
        """G, [d, d]."""
        rows, columns = triangle(self.sums.shape[1], self.gram.device)
        matrix = self.gram.new_zeros(self.sums.shape[1], self.sums.shape[1])
        matrix[rows, columns] = self.gram
        return matrix + matrix.triu(1).T

    @cached_property
    def scatter(self) -> Tensor:
        """G − Σ_c n_c μ_c μ_cᵀ, the scatter within classes, [d, d]."""
        return self.matrix - self.sums.T @ self.means

    @cached_property
    def solvers(self) -> dict[float, Solver]:
        """By s, what was factored already."""
        return {}


@lru_cache(maxsize=4)
def triangle(d: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of the upper triangle of a matrix [d, d], by rows."""
    rows, columns = torch.triu_indices(d, d, device=device)
    return rows, columns


def solver(matrix: Tensor) -> Solver:
    """X with matrix · X = columns, for a symmetric matrix [d, d], which is factored once. Where
    that has no inverse, or is none of a covariance, as noise makes it: that of least squares and
    least norm, by what of it is positive."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    pivots = factor.diagonal()
    if not int(info) and pivots.min() > _SINGULAR * pivots.max():
        return lambda columns: torch.cholesky_solve(columns, factor)
    values, vectors = torch.linalg.eigh(matrix)
    inverse = torch.where(values > _SINGULAR**2 * values.max(), 1 / values, 0.0)
    return lambda columns: vectors @ (inverse[:, None] * (vectors.T @ columns))


def positive(matrix: Tensor) -> Tensor:
    """The nearest symmetric matrix without a negative eigenvalue."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0)) @ vectors.T


def report(change: Sums) -> Tensors:
    """What a client sends of a change: the rows of the classes that change, and G's; no numbers
    where nothing does."""
    some = (change.counts != 0) | (change.sums != 0).any(1)
    classes = some.nonzero().squeeze(1)
    gram = change.gram if change.gram.any() else change.gram[:0]
    rows = {"counts": change.counts[classes], "sums": change.sums[classes], "gram": gram}
    return {"classes": classes} | rows


@lru_cache(maxsize=4)
def diagonal(d: int) -> Tensor:
    """Where the diagonal is in the upper triangle of a matrix [d, d]."""
    rows, columns = triangle(d, torch.device("cpu"))
    return (rows == columns).nonzero().squeeze(1)
