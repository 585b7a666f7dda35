"""FedALA. Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for
Personalized Federated Learning (AAAI 2023).

Symbols: Θ is the global model as received and Θ_i the client's of its last visit; W_i has a number
in [0, 1] for each parameter of the p highest layers. A visit begins at Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ W_i
in these layers, and at Θ in the others."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.fedavg import FedAvg
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.methods.tensors import frozen
from pfedlora_flwr.models.kept import kept, load_kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import torch_generator
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy

_WINDOW = 10
"""Epochs whose losses must be alike before W_i is taken as learned, as in the authors' code."""
_FIRST, _SECOND, _LATER = range(3)
"""A client's visits."""


class Aggregated(nn.Module):
    """What a client keeps: Θ_i, W_i by the names of the parameters, and how often it was
    visited."""

    visits: Tensor

    def __init__(self, model: ClientModel, names: list[str]) -> None:
        super().__init__()
        self.model = model
        own = dict(model.named_parameters())
        self.names = names
        self.weights = nn.ParameterList(torch.ones_like(own[name]) for name in names)
        self.register_buffer("visits", torch.tensor(_FIRST))

    def mixture(self, old: Tensors, received: Tensors) -> Tensors:
        """Θ̂_i of the p highest layers. W_i is put back into [0, 1] before: σ of the paper."""
        with torch.no_grad():
            for weight in self.weights:
                weight.clamp_(0, 1)
        return {
            name: old[name] + (received[name] - old[name]) * weight
            for name, weight in zip(self.names, self.weights, strict=True)
        }


class FedALA(FedAvg):
    """Algorithm 1 of the paper."""

    title = "FedALA"
    paper = "Zhang et al., AAAI 2023, arXiv 2212.01197"
    idea = "FedAvg, each visit starting from an element-wise learned mix of own and received model"

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        layers: int = key(1, "p, the number of last layers that are mixed; 0: all", low=0)
        rate: float = key(1.0, "η, the learning rate of the weights W", above=0)
        share: float = key(0.8, "s, the share of the samples that W learns from", above=0, high=1)
        threshold: float = key(
            0.1,
            "in a client's second visit W is trained until the standard deviation of its last ten"
            " epochs' losses is below this",
            above=0,
        )
        most_epochs: int = key(50, "the largest number of epochs of W in that visit", low=1)

    def private_init(self, client: int, seed: int) -> Aggregated:
        model = super().private_init(client, seed)
        assert isinstance(model, ClientModel)
        return Aggregated(model, highest(model, self.options.layers))

    def predictor(self, model: Aggregated) -> ClientModel:
        return model.model

    def local_update(self, model: Any, received: Tensors, data: Samples, visit: Visit) -> Upload:
        self.aggregate_locally(model, received, data, visit)
        train_locally(model.model, data, visit)
        return Upload(kept(model.model), len(data))

    def aggregate_locally(
        self, model: Aggregated, received: Tensors, data: Samples, visit: Visit
    ) -> None:
        """Θ_i ← Θ̂_i. In its first visit a client has nothing of its own: Θ̂_i is Θ."""
        old = {name: tensor.clone() for name, tensor in kept(model.model).items()}
        load_kept(model.model, received)
        if model.visits > _FIRST:
            # draws of its own: training Θ̂_i shuffles as FedAvg's does
            draws = torch_generator(visit.experiment.seed, "weights", visit.client, visit.round)
            self.learn_weights(model, old, received, data, replace(visit, generator=draws))
            with torch.no_grad():
                load_kept(model.model, received | model.mixture(old, received))
        model.visits.add_(1).clamp_(max=_LATER)

    def learn_weights(
        self, model: Aggregated, old: Tensors, received: Tensors, data: Samples, visit: Visit
    ) -> None:
        """W_i ← σ(W_i − η ∂L(Θ̂_i)/∂W_i), for one epoch, or in the second visit until its loss
        settles."""

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            mixed = model.mixture(old, received)
            return cross_entropy(functional_call(model.model, mixed, (inputs,)), labels)

        some = self.some(data, visit)
        losses: list[float] = []
        model.model.eval()  # Θ and Θ_i are fixed: no running statistics, no dropout
        with frozen(model.model):
            while not self.learned(losses, int(model.visits)):
                visit.sgd(
                    "weights",
                    model.weights,
                    loss,
                    some,
                    epochs=1,
                    lr=self.options.rate,
                    augment=False,
                    plain=True,
                )
                losses.append(visit.losses["weights"])
        model.model.train()

    def learned(self, losses: list[float], visits: int) -> bool:
        """Whether W_i has been trained enough, by its loss after each epoch of this visit; or to no
        end, where that is not finite."""
        o = self.options
        if visits == _LATER or len(losses) == o.most_epochs:
            return bool(losses)
        if not all(map(math.isfinite, losses)):
            return True
        return len(losses) > _WINDOW and statistics.pstdev(losses[-_WINDOW:]) < o.threshold

    def some(self, data: Samples, visit: Visit) -> Samples:
        """A random share s of the samples, at least one."""
        count = max(1, int(self.options.share * len(data)))
        index = torch.randperm(len(data), generator=visit.generator)[:count].to(data.labels.device)
        known = (data.known[0], data.known[1][index]) if data.known else None
        return replace(data, inputs=data.inputs[index], labels=data.labels[index], known=known)


def highest(model: ClientModel, layers: int) -> list[str]:
    """The names of the trained parameters of the last layers, or of all of them for 0. The layers
    are in the order of the model's parts, but the one of the logits is last."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    names.sort(key=model.last_names().__contains__)
    places = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    return [name for name in names if name.rpartition(".")[0] in places[-layers:]]
