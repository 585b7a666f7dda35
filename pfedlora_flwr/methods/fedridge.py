"""FedRidge: the ridge regression of all clients' samples, exactly, from their sums. As in Fed3R
(Fanì, Camoriano, Caputo, Ciccone: Accelerating Heterogeneous Federated Learning with Closed-form
Classifiers, ICML 2024, arXiv 2406.01116) and AFL (He et al.: A Single-Round Analytic Approach for
Federated Learning with Pre-trained Models, CVPR 2025, arXiv 2405.16240); there with one encoder for
all clients.

Symbols as in sums.py; λ = s / (1 − s)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods.moments import Solver, Sums, solver
from pfedlora_flwr.methods.sums import Shrunk


class FedRidge(Shrunk):
    """W = (G + λ n I)⁻¹ M with M_c = S_c − (1/C) Σ z, the regression on one-hot − 1/C; class c has
    the score zᵀw_c."""

    title = "FedRidge"
    paper = "Fanì et al., ICML 2024, arXiv 2406.01116"
    idea = (
        "The ridge regression of all clients' samples on their classes, exactly, in one round and"
        " without training"
    )
    usual = 0.001

    @classmethod
    def check_experiment(cls, experiment: Experiment) -> None:
        super().check_experiment(experiment)
        if experiment.options.shrinkage in ("1", "1.0"):
            raise UserError("sums.shrinkage is 1; allowed with fedridge: below 1")

    choices = (1e-4, 1e-3, 1e-2, 0.1, 0.5)

    def scores(self, total: Sums, s: float) -> tuple[Tensor, Tensor]:
        rest = total.sums.sum(0) / self.classes
        w = self.inverse(total, s, (total.sums - rest).T).T
        return w, w.new_zeros(len(w))

    def left_out(self, total: Sums, s: float, z: Tensor, labels: Tensor) -> Tensor:
        """Exactly, except for n: (f_i − h_ii t_i) / (1 − h_ii)."""
        target = one_hot(labels, self.classes).double() - 1 / self.classes
        h = (z * self.inverse(total, s, z.T).T).sum(1, keepdim=True)
        return (z @ self.scores(total, s)[0].T - h * target) / (1 - h)

    def solver(self, total: Sums, s: float) -> Solver:
        """(G + λ n I)⁻¹ of columns."""
        matrix = self.tidy(total.matrix)
        return solver(matrix + s / (1 - s) * total.n * torch.eye(len(matrix)).to(matrix))
