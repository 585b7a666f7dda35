"""Methods whose server averages what clients send."""

from __future__ import annotations

from collections.abc import Mapping

from pfedlora_flwr.methods.method import Method, Tensors, Upload
from pfedlora_flwr.methods.tensors import weighted_mean


class Averaged(Method):
    """Their next state is the mean of the uploads."""

    averages = True

    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        """θ^t = Σ n_k/n · θ_k^t, n over the admitted clients."""
        return weighted_mean(uploads)
