"""FedAvg. McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep
Networks from Decentralized Data.

Homogeneous only: one model for everyone. A client's personalised model is the one at the end of its
own last visit."""

from __future__ import annotations

from pfedlora_flwr.methods.averaged import Averaged
from pfedlora_flwr.methods.method import Predictors, Tensors, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.methods.tensors import rebuilt
from pfedlora_flwr.models.kept import kept, load_kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, Visit


class FedAvg(Averaged):
    """Algorithm 1 of the paper: the whole model down, local SGD, the whole model up, the weighted
    mean."""

    title = "FedAvg"
    paper = "McMahan et al., AISTATS 2017, arXiv 1602.05629"
    idea = "One model for all, averaged; a client uses the one that it trained last"
    shares = "whole model"
    assumes = "one architecture"
    one_model = True

    def state_init(self, seed: int) -> Tensors:
        with seeded(seed):
            return self.shared(self.client_model(0))

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        self.load(model, received)
        train_locally(model, data, visit)
        return Upload(self.shared(model), len(data))

    def shared(self, model: ClientModel) -> Tensors:
        """What of a model travels."""
        return kept(model)

    def load(self, model: ClientModel, received: Tensors) -> None:
        """Sets what `shared` names."""
        load_kept(model, received)

    def other_predictors(self, model: ClientModel, received: Tensors) -> Predictors:
        device = next(iter(received.values())).device
        return {"global": self.received_model(received).eval().to(device)}

    def received_model(self, received: Tensors) -> ClientModel:
        """The global model as it arrived."""
        return rebuilt(lambda: self.client_model(0), received)
