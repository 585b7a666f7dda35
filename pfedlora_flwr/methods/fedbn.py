"""FedBN. Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization (ICLR 2021).

Batch normalisation is told by its layers' class, not by their names: their weights, biases and
running statistics stay with the client. Without such layers this is FedAvg, and a line says so."""

from __future__ import annotations

from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from pfedlora_flwr.methods.fedavg import FedAvg
from pfedlora_flwr.methods.method import Predictors, Tensors
from pfedlora_flwr.models.kept import kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded


class FedBN(FedAvg):
    """Algorithm 1 of the paper's appendix: FedAvg without the layers of batch normalisation."""

    title = "FedBN"
    paper = "Li et al., ICLR 2021, arXiv 2102.07623"
    idea = "FedAvg, with batch normalisation private"
    shares = "whole model but batch normalisation"
    assumes = "one architecture, with batch normalisation"

    def remarks(self) -> list[str]:
        with seeded(0):
            model = self.client_model(0)
        if kept(model).keys() & batch_norm_names(model):
            return []
        return [
            f"{self.experiment.method} keeps batch normalisation private, and model"
            f" {self.model_names[0]!r} trains none: it is fedavg with a private copy"
        ]

    def shared(self, model: ClientModel) -> Tensors:
        """What a client keeps of its model, except for batch normalisation."""
        private = batch_norm_names(model)
        return {name: tensor for name, tensor in kept(model).items() if name not in private}

    def load(self, model: ClientModel, received: Tensors) -> None:
        super().load(model, kept(model) | received)

    def other_predictors(self, model: ClientModel, received: Tensors) -> Predictors:
        """None: what is shared is no whole model."""
        return {}


def batch_norm_names(model: ClientModel) -> set[str]:
    """The names in the state_dict of the layers of batch normalisation."""
    return {
        f"{at}.{name}"
        for at, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, BatchNorm)
        for name in layer.state_dict()
    }
