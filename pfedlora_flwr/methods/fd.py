"""FD. Jeong, Oh, Kim, Park, Bennis, Kim: Communication-Efficient On-Device Machine Learning:
Federated Distillation and Augmentation under Non-IID Private Data (2018). Federated distillation
only; the paper's augmentation is another matter.

Symbols: F̄_{k,y} is client k's mean logit vector of class y; a client's target for y is the mean of
the *other* clients' F̄_{j,y}."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.class_means import (
    ClassMeans,
    Remembered,
    by_class,
    merged_rows,
    no_reports,
)
from pfedlora_flwr.methods.method import HOLDS, Method, Tensors, Upload
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy


class FD(Remembered):
    """Algorithm 1 of the paper; the server remembers each client's last means, so a client may miss
    rounds."""

    title = "FD"
    paper = "Jeong et al. 2018, arXiv 1811.11479"
    idea = "Each class's logits are pulled towards the other clients' mean logits of the class"
    class_rows = ("classes", "means")
    shares = "mean logits of the classes held"
    assumes = HOLDS
    returns_own = False

    @dataclass(frozen=True)
    class Options(Method.Options):
        lambda_: float = key(1.0, "λ, the weight of the distillation loss", low=0)

    def state_init(self, seed: int) -> Tensors:
        return no_reports(self.classes, counts=False)

    def download(self, state: Tensors, client: int, round: int) -> Tensors:
        """The targets: for each class that any *other* client has reported, the unweighted mean of
        their last means."""
        others = state["clients"] != client
        means, labels = state["means"][others], state["classes"][others]
        return merged_rows(self.experiment, means, labels, self.classes)

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """CE + λ·CE(softmax(target_y), softmax(logits)); a sample whose class has no target has the
        first term only."""
        targets, known = by_class(received, self.classes)
        soft = targets.softmax(1)  # [C, C], a distribution for each class
        means = ClassMeans(self.classes, self.classes, data.labels.device)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            logits = model(inputs)
            means.add(logits, labels)  # F̄_{k,y} is taken while the model trains, over all epochs
            distilled = functional.cross_entropy(logits, soft[labels], reduction="none")  # [B]
            distance = (known[labels] * distilled).mean()
            return cross_entropy(logits, labels) + self.options.lambda_ * distance

        visit.sgd("model", model.parameters(), loss, data)
        return Upload(means.tensors(), len(data))
