"""FFA-LoRA. Sun, Li, Li, Ding: Improving LoRA in Privacy-Preserving Federated Learning (ICLR
2024)."""

from __future__ import annotations

from functools import cached_property

from torch import nn

from pfedlora_flwr.methods.fedit import FedIT
from pfedlora_flwr.methods.lora_factors import A, B, Product, load_some
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.models.kept import kept
from pfedlora_flwr.rng import derive, seeded


class FFALoRA(FedIT):
    """A_0 is drawn once, the same for all, and never trained; so the mean of B is exact:
    ΔW = s (Σ p_k B_k) A_0."""

    title = "FFA-LoRA"
    paper = "Sun et al., ICLR 2024, arXiv 2403.12313"
    idea = "LoRA's A is drawn once for all and frozen, B alone is trained and averaged"
    shares = "LoRA's B"
    sends = (B,)

    def private_init(self, client: int, seed: int) -> nn.Module:
        model = super().private_init(client, seed)
        load_some(model, self.first_factors)
        for name, parameter in model.named_parameters():
            if A in name:
                parameter.requires_grad_(False)
        return model

    @cached_property
    def first_factors(self) -> Tensors:
        """A_0 of each layer, by the experiment's seed."""
        with seeded(derive(self.experiment.seed, "state")):
            drawn = kept(self.client_model(0))
        return {name: tensor for name, tensor in drawn.items() if A in name}

    def products(self, tensors: Tensors, scale: float) -> list[Product]:
        return super().products(self.first_factors | tensors, scale)
