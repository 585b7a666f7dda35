"""Standalone: every client trains its own model alone. It is the reference of personalised
federated learning."""

from __future__ import annotations

from torch import Tensor

from pfedlora_flwr.methods.method import ByClient, Method, Tensors, Upload
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy


class Standalone(Method):
    """Plain local SGD; nothing is sent."""

    title = "Standalone"
    paper = "–"
    idea = "Every client trains its own model alone"
    shares = "nothing"
    merges = "–"
    assumes = "nothing"
    returns_own = False

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        train_locally(model, data, visit)
        return Upload({}, len(data))

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        return state


def train_locally(
    model: ClientModel,
    data: Samples,
    visit: Visit,
    phase: str = "model",
    epochs: int | None = None,
) -> None:
    """Local SGD on the cross-entropy of the model's own predictions, for `local-epochs` unless
    `epochs` is given."""

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(model(inputs), labels)

    visit.sgd(phase, model.parameters(), loss, data, epochs=epochs)
