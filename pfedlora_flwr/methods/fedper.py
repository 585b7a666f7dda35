"""FedPer. Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers
(2019).

Base layers W_B are here everything before the last layer, the personalisation layer W_P is the last
one (K_P = 1)."""

from __future__ import annotations

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods.averaged import Averaged
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, Visit


class FedPer(Averaged):
    """Algorithms 1 and 2 of the paper: both parts are trained together, the base is averaged."""

    title = "FedPer"
    paper = "Arivazhagan et al. 2019, arXiv 1912.00818"
    idea = "Everything before the last layer is averaged, the last layer is private"
    shares = "extractor"
    assumes = "one architecture"
    one_model = True

    def state_init(self, seed: int) -> Tensors:
        """The trained part of a fresh extractor.

        Raises:
            UserError: nothing of it is trained.
        """
        with seeded(seed):
            model = self.client_model(0)
        if not model.extractor_parameters():
            raise UserError(
                f"method {self.experiment.method} shares what is before the last layer, and nothing"
                f" of it is trained in model {self.model_names[0]!r}: set neck=always or train=all"
            )
        return model.extractor_tensors()

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        model.load_extractor(received)
        self.train(model, data, visit)
        return Upload(model.extractor_tensors(), len(data))

    def train(self, model: ClientModel, data: Samples, visit: Visit) -> None:
        """Both parts together."""
        train_locally(model, data, visit)
