"""A client model beside a shared part: logits are the sum of the head's and the adapter's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.linear import layer_of
from pfedlora_flwr.models.model import ClientModel


class Summed(ClientModel):
    """h_k(R) + A_θ(R), of which the model's own part is trained and A_θ stays as it was received.

    given: whether the adapter's first matrix comes from elsewhere, so that it is no part of what a
    client keeps. One that was drawn is: another processor draws other last bits. A row of zeros in
    A_θ says nothing of its class."""

    def __init__(self, model: ClientModel, shared: Adapter, *, given: bool) -> None:
        super().__init__()
        self.model = model
        self.shared = shared.requires_grad_(False)
        for tensor in (shared.up.weight, shared.up.bias):
            nn.init.zeros_(tensor)
        self.width = model.width
        self.description = model.description
        if given:
            self.given = frozenset({"shared.down.weight", "shared.down.bias"})

    def take(self, shared: dict[str, Tensor], outside: Tensor | None) -> None:
        """Sets what was received of A_θ, of whose rows those of the classes outside, bool [C], say
        nothing."""
        self.shared.load_state_dict(self.shared.state_dict() | shared)
        if outside is not None:
            with torch.no_grad():
                self.shared.up.weight[outside] = 0
                self.shared.up.bias[outside] = 0

    def merged(self) -> ClientModel:
        """The same function as a model of the client's own architecture: both parts in its last
        layer."""
        head, shared = self.model.last_layer(), self.shared
        down, up = shared.down, shared.up
        weight = shared.scale * (up.weight.double() @ down.weight.double()) + head.weight.double()
        bias = shared.scale * (up.weight.double() @ down.bias.double()) + up.bias.double()
        if head.bias is not None:
            bias = bias + head.bias.double()
        both = layer_of(weight.to(head.weight.dtype), bias.to(head.weight.dtype))
        return self.model.with_last(both).train(self.training)

    def encode(self, inputs: Tensor) -> Tensor:
        return self.model.encode(inputs)

    def head(self, representation: Tensor) -> Tensor:
        return self.model.head(representation) + self.shared(representation)

    def last_layer(self) -> nn.Linear:
        return self.model.last_layer()
