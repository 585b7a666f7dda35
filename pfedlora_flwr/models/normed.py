"""A client model whose representation has no mean and unit variance, sample by sample: whatever
encoder made it, it has one scale."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import layer_norm

from pfedlora_flwr.models.model import ClientModel, WithLast


class Normed(WithLast):
    """The model with R without its mean and of unit variance (Ba, Kiros and Hinton 2016, arXiv
    1607.06450, without gain and bias), before the same last layer."""

    def __init__(self, model: ClientModel) -> None:
        super().__init__()
        last = model.last_layer()
        model.drop_last_layer()
        self.model, self.last = model, last
        self.width = model.width
        self.base = model.base
        self.description = f"{model.description}, its representation normalised"

    def encode(self, inputs: Tensor) -> Tensor:
        representation = self.model.encode(inputs)
        return layer_norm(representation, representation.shape[1:])
