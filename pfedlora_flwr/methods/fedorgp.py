"""FedORGP. Guo, Luan, Li, Zhao, Jiang: FedORGP: Guiding Heterogeneous Federated Learning with
Orthogonality Regularization on Global Prototypes (2025, arXiv 2502.16119).

Symbols: R, P_i, y_i and P̂_c as in FedTGP; cos is the cosine of the angle between two vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize, one_hot

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.class_means import by_class
from pfedlora_flwr.methods.fedtgp import FedTGP
from pfedlora_flwr.methods.method import Predictors, Tensors
from pfedlora_flwr.methods.server_training import ServerOptions
from pfedlora_flwr.models.model import ClientModel


class FedORGP(FedTGP):
    """FedTGP by angles: global prototypes point where their class's reports do, and at right angles
    to the other classes'."""

    title = "FedORGP"
    paper = "Guo et al. 2025, arXiv 2502.16119"
    idea = (
        "Like FedTGP, with angles: prototypes are aligned with their own class's reports and"
        " orthogonal to the others'"
    )

    @dataclass(frozen=True)
    class Options(ServerOptions):
        lambda_: float = key(1.0, "λ_c, the weight of the angle to the global prototype", low=0)
        server_lambda: float = key(1.0, "λ_s, the weight of alignment on the server", low=0)
        gamma: float = key(1.0, "γ, the weight of orthogonality on the server", low=0)

    def pull(self, representation: Tensor, prototype: Tensor) -> Tensor:
        """1 − cos(R, P̂_y), [B]."""
        return 1 - cosine_similarity(representation, prototype, dim=1)

    def server_loss(
        self, means: Tensor, labels: Tensor
    ) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """λ_s (1 − s) + γ d: s is the mean of cos(P_i, P̂_{y_i}), d the mean of |cos(P_i, P̂_j)|
        over the other classes j ≠ y_i."""
        o = self.options

        def loss(p: Tensor, y: Tensor, global_prototypes: Tensor) -> Tensor:
            cosines = cosines_of(p, global_prototypes)  # [B, C]
            own = one_hot(y, self.classes).bool()
            return (
                o.server_lambda * (1 - cosines[own].mean()) + o.gamma * cosines[~own].abs().mean()
            )

        return loss

    def other_predictors(self, model: ClientModel, received: Tensors) -> Predictors:
        """The global prototype at the smallest angle; none before the first have arrived."""
        table, known = by_class(received, self.classes)
        # a cosine is ≥ −1
        if not len(received["classes"]):
            return {}
        return {"prototype": lambda x: cosines_of(model.encode(x), table).where(known > 0, -2.0)}


def cosines_of(left: Tensor, right: Tensor) -> Tensor:
    """Cosines, [n, d] and [m, d] → [n, m]; 0 with a vector of zeros."""
    return normalize(left, dim=1) @ normalize(right, dim=1).T
