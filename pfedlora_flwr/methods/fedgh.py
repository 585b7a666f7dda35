"""FedGH. Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with Generalized Global
Header (ACM Multimedia 2023, arXiv 2303.13137).

Symbols: R is the input of a model's last layer, and R̄_{k,c} its mean over client k's samples of
class c; θ is the global header, a last layer that the server trains on these means and that takes
the place of every client's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.class_means import (
    check_report,
    largest_report,
    local_prototypes,
    no_reports,
)
from pfedlora_flwr.methods.last_layer import shared_last_layer
from pfedlora_flwr.methods.method import (
    HOLDS,
    ONE_WIDTH,
    ByClient,
    Method,
    Predictors,
    Tensors,
    Upload,
)
from pfedlora_flwr.methods.server_training import ServerOptions, stacked, train
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded, torch_generator
from pfedlora_flwr.training.loop import Samples, Visit


class FedGH(Method):
    """Algorithm 1 of the paper. The server's state is θ; it trains on the reports of the round
    alone."""

    title = "FedGH"
    paper = "Yi et al., ACM Multimedia 2023, arXiv 2303.13137"
    idea = (
        "The server trains a last layer on the clients' mean representations; it replaces every"
        " client's last layer"
    )
    class_rows: ClassVar[tuple[str, ...]] = ("classes", "means")
    shares = "mean representations up, last layer down"
    merges = "server-trained"
    assumes = f"{ONE_WIDTH}; {HOLDS}"
    one_width = True

    @dataclass(frozen=True)
    class Options(ServerOptions):
        server_batch: int = key(10, "class means per step on the server; 0: all at once", low=0)

    def state_init(self, seed: int) -> Tensors:
        """θ⁰."""
        return shared_last_layer(self, seed)

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """Start from the global header, train the whole model; then send R̄_{k,c} of every class
        held."""
        model.last_layer().load_state_dict(received)
        train_locally(model, data, visit)
        return Upload(local_prototypes(model, self.classes, data, visit).tensors(), len(data))

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        """θ ← θ − η_s ∇CE(θ(R̄_{k,c}), c) over the round's class means."""
        reports = stacked(uploads)
        return self.train_header(state, reports["means"], reports["classes"], cross_entropy, round)

    def train_header(
        self,
        state: Tensors,
        inputs: Tensor,
        targets: Tensor,
        loss_of: Callable[[Tensor, Tensor], Tensor],
        round: int,
    ) -> Tensors:
        """θ after its training on `loss_of(logits, targets)`; inputs [n, d], targets a row each."""
        classes, width = state["weight"].shape
        with seeded(0):  # what is drawn here is overwritten
            header = nn.Linear(width, classes, bias="bias" in state)
        header.load_state_dict(state)
        train(
            header,
            lambda index: loss_of(header(inputs[index]), targets[index]),
            len(inputs),
            self.options,
            torch_generator(self.experiment.seed, "header", round=round),
        )
        return tensors_of(header)

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        check_report(
            upload.tensors, no_reports(state["weight"].shape[1], counts=False), self.classes
        )

    def largest_upload(self, state: Tensors) -> int:
        return largest_report(no_reports(state["weight"].shape[1], counts=False), self.classes)

    def other_predictors(self, model: ClientModel, received: Tensors) -> Predictors:
        """The client's extractor under the global header as it arrived."""
        return {
            "global-header": lambda inputs: linear(
                model.encode(inputs), received["weight"], received.get("bias")
            )
        }
