"""FLoRA. Wang, Shen, He, Sun, Wang, Lyu, Li: FLoRA: Federated Fine-Tuning Large Language Models
with Heterogeneous Low-Rank Adaptations (NeurIPS 2024).

Symbols: client k has rank r_k and scale s_k = α_k/r_k; p_k is its share of the round's samples."""

from __future__ import annotations

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods.lora_factors import (
    added,
    check_one_base,
    is_factor,
    mean_of_heads,
)
from pfedlora_flwr.methods.lora_residual import LoraResidual, grown
from pfedlora_flwr.methods.method import ByClient, Tensors
from pfedlora_flwr.models.lora import FOLDER
from pfedlora_flwr.models.lora_layers import draw
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import derive, seeded
from pfedlora_flwr.training.loop import Visit


class FLoRA(LoraResidual):
    """The server stacks the factors, ΔW^t = ΔW^{t−1} + [B_1 … B_K] [p_1 s_1 A_1; …; p_K s_K A_K],
    which is Σ p_k s_k B_k A_k for any ranks; each client merges ΔW into its weights and begins LoRA
    anew at every visit."""

    title = "FLoRA"
    paper = "Wang et al., NeurIPS 2024, arXiv 2409.05976"
    idea = "LoRA's factors are stacked and merged into the base; clients restart LoRA"
    shares = "up: LoRA's A and B of the client's rank; down: all ΔW so far"
    merges = "stacked products"
    assumes = "one base, `train=lora`; ranks may differ"
    one_model = False
    needs_downloads = "a client that begins LoRA anew and receives no ΔW forgets what it trained"

    @classmethod
    def check_experiment(cls, experiment: Experiment) -> None:
        check_one_base(experiment)
        if experiment.lora.init.startswith(FOLDER):
            raise UserError(
                f"lora.init is {experiment.lora.init!r}; allowed with flora, which draws LoRA anew"
                " at every visit: peft, orthogonal"
            )

    def state_init(self, seed: int) -> Tensors:
        """ΔW = 0; and the head, where that is shared."""
        first = super().state_init(seed)
        return {name: tensor for name, tensor in first.items() if not is_factor(name)}

    def restart(self, model: ClientModel, visit: Visit) -> None:
        """LoRA is drawn anew."""
        with seeded(derive(self.experiment.seed, "flora", visit.client, visit.round)):
            draw(model, self.model_of(visit.client).lora_init)

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        shares = self.shares_of(uploads)
        merged = mean_of_heads(uploads)
        for layer, place in enumerate(self.places):
            stacked = added([(share, products[layer]) for share, products in shares])
            merged |= grown(state, place, stacked)
        return merged
