"""A client model of two parts with the same input: the client's own and a small one that all
clients share."""

from __future__ import annotations

from torch import nn

from pfedlora_flwr.models.model import ClientModel


class Composite(ClientModel):
    """`encode` makes one representation, as wide as the own model's, of both models'; logits are
    the own last layer's."""

    def __init__(self, local: ClientModel, small: ClientModel) -> None:
        super().__init__()
        self.local = local
        self.small = small
        self.width = local.width
        self.description = f"{local.description} with a shared {small.description}"

    def last_layer(self) -> nn.Linear:
        return self.local.last_layer()
