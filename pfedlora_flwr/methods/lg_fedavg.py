"""LG-FedAvg. Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated Learning with Local
and Global Representations (2020).

What is global here is the last layer, the one part that models of different structure have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.nn.functional import linear

from pfedlora_flwr.methods.method import Method, Tensors, Upload, tensors_of, weighted_mean
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit


class LGFedAvg(Method):
    """Algorithm 1 of the paper: local and global parts are trained together, only the global part is averaged."""

    title = "LG-FedAvg"
    averages = True
    one_width = True

    def state_init(self, seed: int) -> Tensors:
        return self.shared_last_layer(seed)

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        model.last_layer().load_state_dict(received)
        train_locally(model, data, visit)
        return Upload(tensors_of(model.last_layer()), len(data))

    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        return weighted_mean(uploads)

    def shared_predictor(
        self, shared: Tensors, own: ClientModel | None = None
    ) -> Callable[[Tensor], Tensor] | None:
        """The last layer needs an encoder."""
        return (
            (lambda images: linear(own.encode(images), shared["weight"], shared.get("bias")))
            if own
            else None
        )
