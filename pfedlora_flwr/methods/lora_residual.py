"""What FLoRA and FedEx-LoRA share: ΔW beside the adapters, which the server accumulates and clients
add to their frozen weights.

The state has ΔW of a layer [m, n] in thin factors, `left` [m, R] and `right` [R, n], while these
are fewer numbers than m · n; from then on as the matrix `dense`. All of it goes down, since a
client may have missed rounds."""

from __future__ import annotations

import torch
from torch import nn

from pfedlora_flwr.methods.fedit import SingleUploads
from pfedlora_flwr.methods.lora_factors import A, Product, added, error, load_some
from pfedlora_flwr.methods.method import ByClient, Tensors, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.models.lora_layers import free_weights, move_weights
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, Visit

LEFT, RIGHT, DENSE = ".left", ".right", ".dense"


class LoraResidual(SingleUploads):
    """A method whose clients train on W + ΔW."""

    def private_init(self, client: int, seed: int) -> nn.Module:
        with seeded(seed):
            model = self.client_model(client)
        free_weights(model)
        return model

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        move_base(model, received)
        own = self.layouts[self.model_of(visit.client)]
        load_some(model, {name: t for name, t in received.items() if name in own})
        self.restart(model, visit)
        train_locally(model, data, visit)
        return Upload(self.shared(model), len(data))

    def restart(self, model: ClientModel, visit: Visit) -> None:
        """What a visit begins anew of the adapter; by default nothing."""

    def download_growth(self, state: Tensors) -> int:
        """That of ΔW as matrices, float32."""
        factors = [self.residual(state, place) for place in self.places]
        return sum(4 * left.shape[0] * right.shape[1] for left, right in factors)

    def aggregation_error(self, uploads: ByClient, before: Tensors, after: Tensors) -> float | None:
        """Of all that is added to W: ΔW and the adapters' products."""
        old, new = self.whole(before), self.whole(after)
        shares = self.shares_of(uploads)
        wanted = [
            added([(1.0, self.residual(before, place)), *((p, found[i]) for p, found in shares)])
            for i, place in enumerate(self.places)
        ]
        return error([(1.0, wanted)], old, new)

    def whole(self, state: Tensors) -> list[Product]:
        """ΔW and the adapter of each layer, as one product."""
        found = [self.residual(state, place) for place in self.places]
        adapters = self.products(state, self.state_scale)
        if not adapters:
            return found
        return [
            added([(1.0, one), (1.0, other)]) for one, other in zip(found, adapters, strict=True)
        ]

    @property
    def places(self) -> list[str]:
        """The adapted layers, in the order of the factors' tensors."""
        return [name.split(A)[0] for name in self.layouts[self.model_names[0]] if A in name]

    def residual(self, state: Tensors, place: str) -> Product:
        """ΔW of a layer, in two factors, of no columns where there is none yet."""
        if place + DENSE in state:
            dense = state[place + DENSE].double()
            return dense, torch.eye(dense.shape[1], dtype=torch.float64)
        if place + LEFT in state:
            return state[place + LEFT].double(), state[place + RIGHT].double()
        at = self.places.index(place)
        left, right = self.products(self.layouts[self.model_names[0]], 1.0)[at]
        return left[:, :0], right[:0]


def move_base(model: ClientModel, received: Tensors) -> None:
    """Client: its frozen weights become W + ΔW."""
    by = {}
    for name, tensor in received.items():
        if name.endswith(DENSE):
            by[name.removesuffix(DENSE)] = tensor
        elif name.endswith(LEFT):
            place = name.removesuffix(LEFT)
            by[place] = tensor @ received[place + RIGHT]
    move_weights(model, by)


def grown(state: Tensors, place: str, by: Product) -> Tensors:
    """The tensors of a layer's ΔW after a product is added to it."""
    left, right = (factor.float() for factor in by)
    (m, _), (_, n) = left.shape, right.shape
    if place + DENSE in state:
        return {place + DENSE: state[place + DENSE] + (by[0] @ by[1]).float()}
    if place + LEFT in state:
        left = torch.cat([state[place + LEFT], left], dim=1)
        right = torch.cat([state[place + RIGHT], right])
    if left.shape[1] * (m + n) < m * n:
        return {place + LEFT: left, place + RIGHT: right}
    return {place + DENSE: (left.double() @ right.double()).float()}
