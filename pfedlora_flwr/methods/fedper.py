"""FedPer. Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers
(2019).

Base layers W_B are here everything before the last layer, the personalisation layer W_P is the last
one (K_P = 1)."""

from __future__ import annotations

from collections.abc import Mapping

from pfedlora_flwr.methods.extractor import shared_extractor
from pfedlora_flwr.methods.method import Method, Tensors, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.methods.tensors import weighted_mean
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit


class FedPer(Method):
    """Algorithms 1 and 2 of the paper: both parts are trained together, the base is averaged."""

    title = "FedPer"
    paper = "Arivazhagan et al. 2019, arXiv 1912.00818"
    idea = "Everything before the last layer is averaged, the last layer is private"
    shares = "extractor"
    merges = "mean"
    assumes = "one architecture"
    averages = True
    one_model = True

    def state_init(self, seed: int) -> Tensors:
        return shared_extractor(self, seed)

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        model.load_extractor(received)
        train_locally(model, data, visit)
        return Upload(model.extractor_tensors(), len(data))

    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        return weighted_mean(uploads)
