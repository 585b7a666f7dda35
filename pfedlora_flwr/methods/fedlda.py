"""FedLDA: linear discriminant analysis of all clients' samples, from their sums. As in FedCGS
(Guan, Zhou, Gu: Capture Global Feature Statistics for One-Shot Federated Learning, AAAI 2025, arXiv
2503.06962) and the LDA head of GH-OFL (Turazza, Picone, Mamei: The Gaussian-Head OFL Family, ICLR
2026, arXiv 2602.01186); there with one encoder for all clients.

Symbols as in sums.py; Σ_w is the covariance within classes, Σ_s its shrunk form."""

from __future__ import annotations

import torch
from torch import Tensor

from pfedlora_flwr.methods.sums import Shrunk, Sums, solve


class FedLDA(Shrunk):
    """Σ_w = (G − Σ_c n_c μ_c μ_cᵀ) / n; Σ_s = (1 − s) Σ_w + s·(tr Σ_w / d)·I; a_c = Σ_s⁻¹ μ_c;
    class c has the score zᵀa_c − ½ μ_cᵀa_c."""

    title = "FedLDA"
    paper = "Guan et al., AAAI 2025, arXiv 2503.06962"
    idea = (
        "Linear discriminant analysis by the means and the one covariance of all clients' samples,"
        " in one round and without training"
    )
    shares = "counts and sums of representations, of the classes held, and one second moment"
    merges = "sums"
    assumes = (
        "frozen encoders with normalised representations of one width; the server may know which"
        " classes a client holds, the number of samples of each, and their sums"
    )
    usual = 0.5

    def scores(self, total: Sums) -> tuple[Tensor, Tensor]:
        a = self.inverse(total, total.means.T).T
        return a, -0.5 * (total.means * a).sum(1)

    def inverse(self, total: Sums, of: Tensor) -> Tensor:
        """Σ_s⁻¹ of columns [d, m]."""
        within, eye = total.scatter / total.n, torch.eye(len(of), dtype=of.dtype, device=of.device)
        s = self.shrinkage
        return solve((1 - s) * within + s * within.trace() / len(of) * eye, of)
