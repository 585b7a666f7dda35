"""FlexLoRA. Bai, Chen, Qian, Yao, Li: Federated Fine-tuning of Large Language Models under
Heterogeneous Tasks and Client Resources (NeurIPS 2024).

Symbols: client k has rank r_k and scale s_k = α_k/r_k; p_k is its share of the round's samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.fedit import FedIT
from pfedlora_flwr.methods.lora_factors import (
    A,
    B,
    Product,
    added,
    check_one_base,
    is_factor,
    mean_of_heads,
    scale_of,
    truncated,
)
from pfedlora_flwr.methods.method import ByClient, Tensors
from pfedlora_flwr.rng import seeded


class FlexLoRA(FedIT):
    """The server averages the products, ΔW = Σ p_k s_k B_k A_k = U Σ Vᵀ; client k receives their
    best approximation of its rank: B_k = U Σ / s_k and A_k = Vᵀ, cut to r_k.

    The state holds U Σ and Vᵀ up to the largest rank of all clients: the fixed bank of HLoRA
    (arXiv 2503.00813), which has Σ in A (`flexlora.sigma=a`)."""

    title = "FlexLoRA"
    paper = "Bai et al., NeurIPS 2024, arXiv 2402.11505"
    idea = "LoRA's products are averaged, and factorised again for each client's rank"
    shares = "LoRA's A and B of the client's rank"
    merges = "mean of products, singular value decomposition"
    assumes = "one base, `train=lora`; ranks may differ"
    averages = False
    one_model = False
    state_scale = 1.0

    @dataclass(frozen=True)
    class Options(FedIT.Options):
        sigma: str = key(
            "b",
            "the factor that gets the singular values: b, as in FlexLoRA; a, as in HLoRA; both:"
            " each gets their square roots",
            choices=("b", "a", "both"),
        )

    @classmethod
    def check_experiment(cls, experiment: Experiment) -> None:
        check_one_base(experiment)

    @cached_property
    def ranks(self) -> list[int]:
        """Of the client models, in turn."""
        return [name.lora_rank for name in self.model_names]

    @property
    def largest(self) -> int:
        """The largest rank of all clients."""
        return max(self.ranks)

    def state_init(self, seed: int) -> Tensors:
        client = self.ranks.index(self.largest)
        with seeded(seed):
            first = self.shared(self.client_model(client))
        scale = scale_of(self.model_of(client))  # B is 0 but where it is read from a folder
        return {
            name: tensor.flatten(1) * (scale if B in name else 1) if is_factor(name) else tensor
            for name, tensor in first.items()
        }

    def download(self, state: Tensors, client: int, round: int) -> Tensors:
        name = self.model_of(client)
        scale, sent = scale_of(name), {}
        for one, like in self.layouts[name].items():
            tensor = state[one]
            if A in one:
                tensor = tensor[: len(like)]
            elif B in one:
                tensor = tensor[:, : like.shape[1]] / scale
            sent[one] = tensor.reshape(like.shape)
        return sent

    def largest_upload(self, state: Tensors) -> int:
        return sum(t.nbytes for t in state.values())

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        merged, shares = dict(state), self.shares_of(uploads)
        for layer, name in enumerate(name for name in state if A in name):
            wanted = added([(share, products[layer]) for share, products in shares])
            left, right = self.split(*truncated(wanted, self.largest))
            first, second = state[name].clone(), torch.zeros_like(state[name.replace(A, B)])
            first[: len(right)] = right.to(first.dtype)  # rows beyond the product's rank stay
            second[:, : left.shape[1]] = left.to(second.dtype)
            merged |= {name: first, name.replace(A, B): second}
        return merged | mean_of_heads(uploads)

    def split(self, left: Tensor, right: Tensor) -> Product:
        """U Σ and Vᵀ with Σ where `sigma` says."""
        if self.options.sigma == "b":
            return left, right
        sigma = left.norm(dim=0)  # of orthonormal columns
        # a column of 0 has no direction: it stays
        moved = sigma.where(sigma > 0, torch.ones(())) ** (
            0.5 if self.options.sigma == "both" else 1
        )
        return left / moved, right * moved[:, None]
