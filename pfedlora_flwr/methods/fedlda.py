"""FedLDA: linear discriminant analysis of all clients' samples, from their sums. As in FedCGS
(Guan, Zhou, Gu: Capture Global Feature Statistics for One-Shot Federated Learning, AAAI 2025, arXiv
2503.06962) and the LDA head of GH-OFL (Turazza, Picone, Mamei: The Gaussian-Head OFL Family, ICLR
2026, arXiv 2602.01186); there with one encoder for all clients.

Symbols as in sums.py; Σ_w is the covariance within classes, Σ_s its shrunk form."""

from __future__ import annotations

import torch
from torch import Tensor

from pfedlora_flwr.methods.moments import Solver, Sums, solver
from pfedlora_flwr.methods.sums import Shrunk

_NOTHING = 1e-10
"""A trace of Σ_w below it is rounding: coordinates have length 1."""


class FedLDA(Shrunk):
    """Σ_w = (G − Σ_c n_c μ_c μ_cᵀ) / n; Σ_s = (1 − s) Σ_w + s·(tr Σ_w / d)·I; a_c = Σ_s⁻¹ μ_c;
    class c has the score zᵀa_c − ½ μ_cᵀa_c."""

    title = "FedLDA"
    paper = "Guan et al., AAAI 2025, arXiv 2503.06962"
    idea = (
        "Linear discriminant analysis by the means and the one covariance of all clients' samples,"
        " in one round and without training"
    )
    usual = 0.5

    choices = (0.1, 0.35, 0.6, 0.8, 0.9)
    formulas = ("oas",)

    def strength(self, total: Sums, right: Tensor) -> float:
        return oas(total) if self.options.shrinkage == "oas" else super().strength(total, right)

    def solver(self, total: Sums, s: float) -> Solver:
        """Σ_s⁻¹ of columns; the columns as they are where no class has samples that differ, since
        nothing is known of Σ then: the nearest mean decides."""
        within = self.tidy(total.scatter) / total.n
        if within.trace() < _NOTHING:
            return lambda columns: columns
        mean = within.diagonal().mean()
        return solver((1 - s) * within + s * mean * torch.eye(len(within)).to(within))


def oas(total: Sums) -> float:
    """The oracle approximating shrinkage of Σ_w (Chen, Wiesel, Eldar, Hero 2010, Eq. 23, as in
    scikit-learn), which takes the samples for Gaussian."""
    within = total.scatter / total.n
    squares, mean = float(within.square().mean()), float(within.diagonal().mean())
    most = (float(total.n) + 1) * (squares - mean**2 / len(within))
    return min((squares + mean**2) / most, 1.0) if most > 0 else 1.0
