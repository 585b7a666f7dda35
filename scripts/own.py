"""A model and a method as a user would write them (docs/extending.md): `same_bits.py` trains with
both."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfedlora_flwr.methods.method import Method, Tensors, Upload
from pfedlora_flwr.methods.tensors import tensors_of, weighted_mean
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, Visit


class Strided(nn.Module):
    """A small network with a batch normalisation and a dropout, so that running statistics and
    drawn masks count."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 4, stride=4),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(1024, 500),
            nn.ReLU(),
            nn.Dropout(0.2),
        )
        self.head = nn.Linear(500, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(inputs))


class NearHead(Method):
    """The last layer is averaged, and trained with a penalty on its distance from the average."""

    def state_init(self, seed: int) -> Tensors:
        with seeded(seed):
            return tensors_of(self.client_model(0).last_layer())

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        head = model.last_layer()
        head.load_state_dict(received)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            distance = (head.weight - received["weight"]).square().sum()
            return cross_entropy(model(inputs), labels) + 0.05 * distance

        visit.sgd("model", model.parameters(), loss, data)
        return Upload(tensors_of(head), len(data))

    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        return weighted_mean(uploads)
