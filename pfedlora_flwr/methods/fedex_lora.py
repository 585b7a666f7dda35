"""FedEx-LoRA. Singhal, Ponkshe, Vepakomma: FedEx-LoRA: Exact Aggregation for Federated and
Efficient Fine-Tuning of Large Language Models (ACL 2025).

Symbols: B̄ = Σ p_k B_k and Ā = Σ p_k A_k; R is what their product has missed in all rounds."""

from __future__ import annotations

from pfedlora_flwr.methods.lora_factors import A, added, truncated
from pfedlora_flwr.methods.lora_residual import LoraResidual, grown
from pfedlora_flwr.methods.method import ByClient, Tensors
from pfedlora_flwr.methods.tensors import weighted_mean


class FedExLoRA(LoraResidual):
    """FedIT, and the server adds what the means miss to the frozen weights:
    R ← R + s [Σ p_k B_k A_k − B̄ Ā]. Clients train A and B on W + R."""

    title = "FedEx-LoRA"
    paper = "Singhal et al., ACL 2025, arXiv 2410.09432"
    idea = "FedIT, and the error of its means is added to the frozen weights"
    shares = "LoRA's A and B; down: also the errors of their means so far"
    merges = "mean, and its error"

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        means, shares = weighted_mean(uploads), self.shares_of(uploads)
        merged = dict(means)
        of_means = self.products(means, self.state_scale)
        rank = (len(uploads) - 1) * len(next(t for name, t in means.items() if A in name))
        for layer, place in enumerate(self.places):
            terms = [(share, products[layer]) for share, products in shares]
            merged |= grown(state, place, truncated(added([*terms, (-1.0, of_means[layer])]), rank))
        return merged
