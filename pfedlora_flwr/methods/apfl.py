"""APFL. Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning (2020).

Symbols: w is the global model and w_k client k's copy of it in a visit; v_k is the client's own
model and α_k its weight: the personalised model is v̄_k = α_k v_k + (1 − α_k) w_k. Models are mixed,
not their outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.fedavg import FedAvg
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.models.kept import kept, load_kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import derive, seeded
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy


class Mixed(nn.Module):
    """What a client keeps: v_k, v̄_k as its last visit left it, and α_k."""

    def __init__(self, own: ClientModel, mixed: ClientModel, alpha: float, adapts: bool) -> None:
        super().__init__()
        self.own = own
        self.mixed = mixed
        self.alpha = nn.Parameter(torch.tensor(alpha), requires_grad=adapts)

    def mixture(self, whole: ClientModel) -> Tensors:
        """v̄_k = α_k v_k + (1 − α_k) w_k, of the trained parameters; w_k is a constant. α_k is put
        back into [0, 1] before."""
        with torch.no_grad():
            self.alpha.clamp_(0, 1)
        received = dict(whole.named_parameters())
        return {
            name: self.alpha * v + (1 - self.alpha) * received[name].detach()
            for name, v in self.own.named_parameters()
            if v.requires_grad
        }

    def settle(self, whole: ClientModel) -> None:
        """v̄_k ← α_k v_k + (1 − α_k) w_k, with the running statistics of its own passes."""
        with torch.no_grad():
            load_kept(self.mixed, kept(self.own) | self.mixture(whole))


class APFL(FedAvg):
    """Algorithm 1 of the paper."""

    title = "APFL"
    paper = "Deng et al. 2020, arXiv 2003.13461"
    idea = "A private model, mixed with a global one by a weight that each client learns"

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        alpha: float = key(0.5, "α, the initial weight of the own model", low=0, high=1)
        adapt: bool = key(True, "whether each client trains its α")

    def private_init(self, client: int, seed: int) -> Mixed:
        """v_k and v̄_k begin as w^0, at every client."""
        models = []
        for _ in range(2):
            with seeded(derive(self.experiment.seed, "state")):
                models.append(self.client_model(client))
        return Mixed(models[0], models[1], self.options.alpha, self.options.adapt)

    def predictor(self, model: Mixed) -> ClientModel:
        return model.mixed

    def local_update(self, model: Any, received: Tensors, data: Samples, visit: Visit) -> Upload:
        whole = self.received_model(received).train().to(data.labels.device)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            """F_k(w_k), whose gradient is w_k's, plus F_k(v̄_k), whose gradient is v_k's and
            α_k's: α ∇F_k(v̄_k) and ⟨∇F_k(v̄_k), v_k − w_k⟩."""
            logits = functional_call(model.own, model.mixture(whole), (inputs,))
            return cross_entropy(whole(inputs), labels) + cross_entropy(logits, labels)

        visit.sgd("model", [*whole.parameters(), *model.own.parameters(), model.alpha], loss, data)
        model.settle(whole)
        return Upload(kept(whole), len(data))
