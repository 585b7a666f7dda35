"""Methods whose server averages what clients send."""

from __future__ import annotations

from pfedlora_flwr.methods.method import ByClient, Method, Tensors
from pfedlora_flwr.methods.tensors import weighted_mean


class Averaged(Method):
    """Their next state is the mean of the uploads."""

    averages = True
    merges = "mean"

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        """θ^t = Σ n_k/n · θ_k^t, n over the admitted clients."""
        return weighted_mean(uploads)
