"""FedBABU. Oh, Kim, Yun: FedBABU: Towards Enhanced Representation for Federated Image
Classification (ICLR 2022).

Symbols: the body is everything before the last layer; the head, the last layer, is drawn once, the
same for all clients, and stays so while the body is federated. A client's personalised model is
body and head, fine-tuned together from the received body and the first head."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from torch import nn

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.fedper import FedPer
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.methods.tensors import frozen, tensors_of
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import derive, seeded
from pfedlora_flwr.training.loop import Samples, Visit


class FineTuned(nn.Module):
    """What a client keeps: its fine-tuned model, and the head that all clients began with."""

    def __init__(self, model: ClientModel) -> None:
        super().__init__()
        self.model = model
        self.first_head = copy.deepcopy(model.last_layer()).requires_grad_(False)

    def restart(self, body: Tensors) -> None:
        """The model ← the received body with the first head."""
        self.model.load_extractor(body)
        self.model.last_layer().load_state_dict(tensors_of(self.first_head))


class FedBABU(FedPer):
    """Algorithm 1 of the paper, and its fine-tuning, which takes place at each visit: the next
    evaluation is of what it made."""

    title = "FedBABU"
    paper = "Oh et al., ICLR 2022, arXiv 2106.06042"
    idea = (
        "The extractor is averaged before one fixed random last layer; each client fine-tunes both"
        " for itself"
    )

    @dataclass(frozen=True)
    class Options(FedPer.Options):
        finetune_epochs: int = key(5, "epochs of fine-tuning before an evaluation", low=1)

    def private_init(self, client: int, seed: int) -> FineTuned:
        """One head for all clients, that of the first shared model."""
        with seeded(derive(self.experiment.seed, "state")):
            return FineTuned(self.client_model(client))

    def predictor(self, model: FineTuned) -> ClientModel:
        return model.model

    def local_update(self, model: Any, received: Tensors, data: Samples, visit: Visit) -> Upload:
        sent = self.trained_body(model, received, data, visit)
        self.fine_tune(model, received, data, visit)
        return Upload(sent, len(data))

    def trained_body(
        self, model: FineTuned, received: Tensors, data: Samples, visit: Visit
    ) -> Tensors:
        """The body after `local-epochs`, the head fixed."""
        model.restart(received)
        with frozen(model.model.last_layer()):
            train_locally(model.model, data, visit, "body")
        return {name: t.clone() for name, t in model.model.extractor_tensors().items()}

    def fine_tune(self, model: FineTuned, received: Tensors, data: Samples, visit: Visit) -> None:
        """Body and head together, from the received body."""
        model.restart(received)
        train_locally(model.model, data, visit, epochs=self.options.finetune_epochs)
