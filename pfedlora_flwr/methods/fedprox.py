"""FedProx. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous
Networks (MLSys 2020).

Homogeneous only, as FedAvg, whose personalised model and second figure it has."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.fedavg import FedAvg
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.tensors import proximal
from pfedlora_flwr.models.kept import kept, load_kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy


class FedProx(FedAvg):
    """Algorithm 2 of the paper: FedAvg with a proximal term, which holds the local model near the
    one that was received."""

    title = "FedProx"
    paper = "Li et al., MLSys 2020, arXiv 1812.06127"
    idea = "FedAvg, each local model held near the received one"

    @dataclass(frozen=True)
    class Options(FedAvg.Options):
        mu: float = key(0.01, "μ, the weight of the proximal term", low=0)

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        load_kept(model, received)
        distance = proximal(model, received)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            """h_k(w; w^t) = F_k(w) + μ/2 ‖w − w^t‖² (Eq. 2)."""
            return cross_entropy(model(inputs), labels) + self.options.mu / 2 * distance()

        visit.sgd("model", model.parameters(), loss, data)
        return Upload(kept(model), len(data))
