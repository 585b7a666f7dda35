"""FedRep. Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
Personalized Federated Learning (ICML 2021).

Symbols: φ is the representation, everything before the last layer; h_i is client i's head, the last
layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.fedper import FedPer
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.methods.tensors import frozen
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy


class FedRep(FedPer):
    """Algorithm 1 of the paper: the head is trained behind the received φ, then φ before that head;
    φ alone is averaged."""

    title = "FedRep"
    paper = "Collins et al., ICML 2021, arXiv 2102.07078"
    idea = "The private head is trained first, then the shared extractor before it"

    @dataclass(frozen=True)
    class Options(FedPer.Options):
        head_epochs: int = key(
            10, "epochs of the head, before `local-epochs` of the extractor", low=1
        )

    def train(self, model: ClientModel, data: Samples, visit: Visit) -> None:
        """h_i first, then φ_i."""
        self.train_head(model, data, visit)
        with frozen(model.last_layer()):  # φ_i ← GRD(f_i(h_i, φ_i)), `local-epochs` of it
            train_locally(model, data, visit)

    def train_head(self, model: ClientModel, data: Samples, visit: Visit) -> None:
        """h_i ← GRD(f_i(h_i, φ^t)), `head-epochs` of it."""
        model.eval()  # φ is fixed: no running statistics, no dropout

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                representation = model.encode(inputs)
            return cross_entropy(model.head(representation), labels)

        head = model.last_layer().parameters()
        visit.sgd("head", head, loss, data, epochs=self.options.head_epochs)
        model.train()
