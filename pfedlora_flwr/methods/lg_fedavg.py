"""LG-FedAvg. Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act
Globally: Federated Learning with Local and Global Representations (2020).

What is global here is the last layer, the one part that models of different structure have in
common."""

from __future__ import annotations

from pfedlora_flwr.methods.averaged import Averaged
from pfedlora_flwr.methods.last_layer import shared_last_layer
from pfedlora_flwr.methods.method import ONE_WIDTH, Tensors, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit


class LGFedAvg(Averaged):
    """Algorithm 1 of the paper: local and global parts are trained together, only the global part
    is averaged."""

    title = "LG-FedAvg"
    paper = "Liang et al. 2020, arXiv 2001.01523"
    idea = "The last layer is averaged; everything before it is private"
    shares = "last layer"
    assumes = ONE_WIDTH
    one_width = True

    def state_init(self, seed: int) -> Tensors:
        return shared_last_layer(self, seed)

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        model.last_layer().load_state_dict(received)
        train_locally(model, data, visit)
        return Upload(tensors_of(model.last_layer()), len(data))
