"""Ditto. Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization
(ICML 2021).

Symbols: w is the global model, solved for by FedAvg; v_k is client k's own, which never leaves it
and alone predicts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.fedavg import FedAvg
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.methods.tensors import proximal
from pfedlora_flwr.models.kept import kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import derive, seeded
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy


class Ditto(FedAvg):
    """Algorithm 1 of the paper, with FedAvg as its solver of the global objective."""

    title = "Ditto"
    paper = "Li et al., ICML 2021, arXiv 2012.04221"
    idea = "A private model held near a global one, which FedAvg trains beside it"

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        lambda_: float = key(
            1.0, "λ, the weight of the own model's distance to the global one", low=0
        )
        epochs: int | None = key(
            None, "epochs of the own model per visit (auto: `local-epochs`)", low=1
        )

    def private_init(self, client: int, seed: int) -> nn.Module:
        """v_k begins as w^0, at every client."""
        with seeded(derive(self.experiment.seed, "state")):
            return self.client_model(client)

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        self.train_own(model, received, data, visit)
        return Upload(self.trained_global(received, data, visit), len(data))

    def train_own(self, model: ClientModel, received: Tensors, data: Samples, visit: Visit) -> None:
        """v_k ← v_k − η (∇F_k(v_k) + λ (v_k − w^t))."""
        distance = proximal(model, received)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            """h_k(v; w^t) = F_k(v) + λ/2 ‖v − w^t‖² (Eq. 1)."""
            return cross_entropy(model(inputs), labels) + self.options.lambda_ / 2 * distance()

        visit.sgd("model", model.parameters(), loss, data, epochs=self.options.epochs)

    def trained_global(self, received: Tensors, data: Samples, visit: Visit) -> Tensors:
        """w_k^t: local SGD from w^t, as FedAvg's."""
        whole = self.received_model(received).train().to(data.labels.device)
        train_locally(whole, data, visit, "global")
        return kept(whole)
