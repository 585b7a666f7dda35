"""A client model with another width than its own, for methods that need one width if the clients'
models have several."""

from __future__ import annotations

from torch import Tensor

from pfedlora_flwr.models.linear import Linear
from pfedlora_flwr.models.model import ClientModel, WithLast


class Necked(WithLast):
    """The model without its last layer, a neck, Linear(own width → width), and a new last layer. R
    is the neck's output; it has signs."""

    def __init__(self, model: ClientModel, width: int, classes: int) -> None:
        super().__init__()
        own = model.width
        model.drop_last_layer()
        self.model = model
        self.neck = Linear(own, width)
        self.last = Linear(width, classes)
        self.width = width
        self.description = f"{model.description} with a neck from {own} to {width}"

    def encode(self, inputs: Tensor) -> Tensor:
        return self.neck(self.model.encode(inputs))
