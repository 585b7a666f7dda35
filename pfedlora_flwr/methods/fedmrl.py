"""FedMRL. Yi, Yu, Ren, Wang, Liu, Li: Federated Model Heterogeneous Matryoshka Representation
Learning (NeurIPS 2024, arXiv 2406.00488).

Symbols: F_k is the client's own model, whose representation is d2 wide; G(θ) is a small model of
one structure for everyone, d1 wide, and the only one that is shared; P_k is the client's projector
of both representations, side by side, to d2; R is what it gives; m_G and m_F weigh the two losses.
R nests like a Matryoshka doll: G's last layer takes its first d1 numbers, F_k's takes all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfedlora_flwr.errors import wrong
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.averaged import Averaged
from pfedlora_flwr.methods.method import SMALL, Method, Predictors, Tensors, Upload
from pfedlora_flwr.models import registry
from pfedlora_flwr.models.composite import Composite
from pfedlora_flwr.models.kept import kept, load_kept
from pfedlora_flwr.models.linear import Linear
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy


class Matryoshka(Composite):
    """What a client keeps: F_k, G as it left the last visit, and P_k. It predicts from the whole of
    R."""

    def __init__(self, local: ClientModel, small: ClientModel) -> None:
        super().__init__(local, small)
        self.projector = Linear(small.width + local.width, local.width)

    def encode(self, inputs: Tensor) -> Tensor:
        """R = P_k(G_ex(x) | F_ex(x)), [B, d2]; nothing after the projection, so its signs are
        free."""
        return self.projector(torch.cat([self.small.encode(inputs), self.local.encode(inputs)], 1))

    def small_head(self, representation: Tensor) -> Tensor:
        """R, [B, d2] → logits of G's last layer, from its first d1 numbers."""
        return self.small.last_layer()(representation[:, : self.small.width])


class FedMRL(Averaged):
    """The paper's method, as docs/fidelity.md says from which sources."""

    title = "FedMRL"
    paper = "Yi et al., NeurIPS 2024, arXiv 2406.00488"
    idea = (
        "A projector joins the representations of the client's own and a small model; the small"
        " head reads the first numbers, the own head all"
    )
    shares = "small model with a narrow representation"
    merges = "mean, composite"
    assumes = f"{SMALL}; all representations at least as wide as its own"
    shares_small = True

    @dataclass(frozen=True)
    class Options(Method.Options):
        representation_dim: int = key(
            100, "d1, the width of the small model's representation", low=1
        )
        small_weight: float = key(1.0, "m_G, the weight of the small last layer's loss", low=0)
        large_weight: float = key(
            1.0, "m_F, the weight of the client's own last layer's loss", low=0
        )

    def state_init(self, seed: int) -> Tensors:
        """θ⁰. Raises UserError if a client's R would be narrower than its nested part."""
        d1 = self.options.representation_dim
        for name in dict.fromkeys(self.model_names):
            if (d2 := registry.facts(name, self.task).width) < d1:
                most = f"at most {d2}, the width of {name}'s representation"
                raise wrong("fedmrl.representation-dim", d1, most)
        with seeded(seed):
            return kept(self.small_model())

    def private_init(self, client: int, seed: int) -> Matryoshka:
        with seeded(seed):
            # the client's own first, so that it starts as with every other method
            return Matryoshka(self.client_model(client), self.small_model())

    def local_update(
        self, model: Matryoshka, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """Everything is trained end to end on the sum of the losses of both last layers."""
        o = self.options
        load_kept(model.small, received)  # θ_k ← θ^{t-1}

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            representation = model.encode(inputs)  # R
            small = cross_entropy(model.small_head(representation), labels)  # ℓ_G
            large = cross_entropy(model.head(representation), labels)  # ℓ_F
            return o.small_weight * small + o.large_weight * large

        visit.sgd("model", model.parameters(), loss, data)
        return Upload(kept(model.small), len(data))  # θ_k^t goes up, ω_k^t and P_k^t stay

    def other_predictors(self, model: Matryoshka, received: Tensors) -> Predictors:
        """The small last layer on its part of R, and each model without the other."""
        return {
            "mix-small": lambda inputs: model.small_head(model.encode(inputs)),
            "single-small": model.small,
            "single-large": model.local,
        }

    def small_model(self) -> ClientModel:
        """A fresh G."""
        return registry.small_model(self.model_names, self.task, self.options.representation_dim)
