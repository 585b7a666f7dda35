"""FlexLoRA. Bai, Chen, Qian, Yao, Li: Federated Fine-tuning of Large Language Models under
Heterogeneous Tasks and Client Resources (NeurIPS 2024).

Symbols: client k has rank r_k and scale s_k = α_k/r_k; p_k is its share of the round's samples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment, parted
from pfedlora_flwr.methods.fedit import FedIT
from pfedlora_flwr.methods.lora_factors import A, B, added, scale_of, truncated
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.tensors import weighted_mean
from pfedlora_flwr.rng import seeded


class FlexLoRA(FedIT):
    """The server averages the products, ΔW = Σ p_k s_k B_k A_k = U Σ Vᵀ; client k receives their
    best approximation of its rank: B_k = U Σ / s_k and A_k = Vᵀ, cut to r_k.

    The state holds U Σ and Vᵀ up to the largest rank of all clients."""

    title = "FlexLoRA"
    paper = "Bai et al., NeurIPS 2024, arXiv 2402.11505"
    idea = "LoRA's products are averaged, and split anew for each client's rank"
    shares = "LoRA's A and B of the client's rank"
    merges = "mean of products, singular value decomposition"
    assumes = "one base, `train=lora`; ranks may differ"
    averages = False
    one_model = False
    state_scale = 1.0

    @classmethod
    def check_experiment(cls, experiment: Experiment) -> None:
        models = set()
        for name in experiment.model_names():
            bare, said = parted(name)
            models.add((bare, *(v for k, v in said.items() if k != "lora.rank")))
        if len(models) > 1:
            raise UserError(
                f"method {experiment.method} averages LoRA's products inside one base, and the"
                " clients' models differ in more than lora.rank: set models and train to one"
            )

    @cached_property
    def layouts(self) -> dict[str, Tensors]:
        """By model name: what such a client sends, by name, as it is first."""
        found = {}
        for k, name in enumerate(self.model_names):
            with seeded(0):
                found[name] = self.shared(self.client_model(k))
        return found

    @cached_property
    def ranks(self) -> list[int]:
        """Of the client models, in turn."""
        return [int(parted(name)[1]["lora.rank"]) for name in self.model_names]

    @property
    def largest(self) -> int:
        """The largest rank of all clients."""
        return max(self.ranks)

    def state_init(self, seed: int) -> Tensors:
        with seeded(seed):
            first = self.shared(self.client_model(self.ranks.index(self.largest)))
        return {
            name: tensor.flatten(1) if _is_factor(name) else tensor
            for name, tensor in first.items()
        }

    def download(self, state: Tensors, client: int, round: int) -> Tensors:
        name = self.model_of(client)
        scale, sent = scale_of(name), {}
        for key, like in self.layouts[name].items():
            tensor = state[key]
            if A in key:
                tensor = tensor[: len(like)]
            elif B in key:
                tensor = tensor[:, : like.shape[1]] / scale
            sent[key] = tensor.reshape(like.shape)
        return sent

    def largest_upload(self, state: Tensors) -> int:
        return sum(t.numel() * t.element_size() for t in state.values())

    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        heads = {
            k: Upload({n: t for n, t in one.tensors.items() if not _is_factor(n)}, one.samples)
            for k, one in uploads.items()
        }
        means = weighted_mean(heads)
        merged, shares = dict(state), self.shares_of(uploads)
        for layer, name in enumerate(name for name in state if A in name):
            wanted = added([(share, products[layer]) for share, products in shares])
            left, right = truncated(wanted, self.largest)
            first, second = state[name].clone(), torch.zeros_like(state[name.replace(A, B)])
            first[: len(right)] = right.to(first.dtype)  # rows beyond the product's rank stay
            second[:, : left.shape[1]] = left.to(second.dtype)
            merged |= {name: first, name.replace(A, B): second}
        return merged | means


def _is_factor(name: str) -> bool:
    return A in name or B in name
