"""FedSA-LoRA. Guo, Zeng, Wang, Fan, Wang, Qu: Selective Aggregation for Low-Rank Adaptation in
Federated Learning (ICLR 2025)."""

from __future__ import annotations

from pfedlora_flwr.methods.fedit import FedIT
from pfedlora_flwr.methods.lora_factors import A
from pfedlora_flwr.methods.method import ByClient, Tensors


class FedSALoRA(FedIT):
    """A, which holds what is common, is averaged; B stays with its client."""

    title = "FedSA-LoRA"
    paper = "Guo et al., ICLR 2025, arXiv 2410.01463"
    idea = "LoRA's A is averaged, B is private"
    shares = "LoRA's A"
    sends = (A,)

    def aggregation_error(self, uploads: ByClient, before: Tensors, after: Tensors) -> float | None:
        """None: there is no common product that a mean could miss."""
        return None
