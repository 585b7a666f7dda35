"""FedTGP. Zhang, Liu, Hua, Cao: FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced
Contrastive Learning for Data and Model Heterogeneity in Federated Learning (AAAI 2024, arXiv
2401.03230).

Symbols: R is the input of a model's last layer; P_i is a reported prototype, the mean R of a
client's samples of class y_i; P̂_c is the global prototype of class c, which the server learns; δ
is the margin that it keeps between classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.class_means import (
    ClassMeans,
    by_class,
    check_report,
    largest_report,
    local_prototypes,
    nearest,
)
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
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.rng import seeded, torch_generator
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy


class PrototypeNet(nn.Module):
    """P̂ of all classes, [C, d]: an embedding of each class, Linear, ReLU, Linear."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self) -> Tensor:
        return self.output(torch.relu(self.hidden(self.embedding.weight)))


class FedTGP(Method):
    """Algorithm 1 of the paper. The server's state is its net, and what it sends: `classes` and
    `means`, P̂ of those ever reported."""

    title = "FedTGP"
    paper = "Zhang et al., AAAI 2024, arXiv 2401.03230"
    idea = "Like FedProto, but the server trains the prototypes, with a margin between them"
    class_rows = ("classes", "means")
    shares = "mean representations up, prototypes down"
    merges = "server-trained"
    assumes = f"{ONE_WIDTH}; {HOLDS}"
    one_width = True

    @dataclass(frozen=True)
    class Options(ServerOptions):
        lambda_: float = key(1.0, "λ, the weight of the distance to the global prototype", low=0)
        margin_threshold: float = key(
            100.0, "τ, the largest margin δ between prototypes on the server", low=0
        )
        server_epochs: int = key(100, "passes over a round's reports on the server", low=1)
        server_batch: int = key(0, "reports per step on the server; 0: all at once", low=0)

    def state_init(self, seed: int) -> Tensors:
        width = self.shared_width
        with seeded(seed):
            net = PrototypeNet(self.classes, width)
        return tensors_of(net) | {
            "classes": torch.zeros(0, dtype=torch.int64),
            "means": torch.zeros(0, width),
        }

    def download(self, state: Tensors, client: int, round: int) -> Tensors:
        """P̂ of every class that anyone has reported; the net stays."""
        return {"classes": state["classes"], "means": state["means"]}

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """CE + λ·pull(R, P̂_y); a sample whose class has no global prototype has the first term
        only. Then the prototypes."""
        table, known = by_class(received, self.classes)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            representation = model.encode(inputs)  # R, [B, d]
            own = cross_entropy(model.last_layer()(representation), labels)
            apart = known[labels] * self.pull(representation, table[labels])
            return own + self.options.lambda_ * apart.mean()

        visit.sgd("model", model.parameters(), loss, data)
        return Upload(local_prototypes(model, self.classes, data, visit).tensors(), len(data))

    def pull(self, representation: Tensor, prototype: Tensor) -> Tensor:
        """What draws each R to its class's P̂, both [B, d]: the mean square of their difference,
        [B]."""
        return (representation - prototype).square().mean(1)

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        """The net, trained on the round's reports {(P_i, y_i)}."""
        reports = stacked(uploads)
        means, labels = reports["means"], reports["classes"]
        with seeded(0):  # what is drawn here is overwritten
            net = PrototypeNet(self.classes, means.shape[1])
        net.load_state_dict({name: state[name] for name in net.state_dict()})
        loss = self.server_loss(means, labels)
        train(
            net,
            lambda index: loss(means[index], labels[index], net()),
            len(means),
            self.options,
            torch_generator(self.experiment.seed, "prototypes", round=round),
        )
        known = torch.cat([state["classes"], labels]).unique()
        with torch.no_grad():
            return tensors_of(net) | {"classes": known, "means": net()[known]}

    def server_loss(
        self, means: Tensor, labels: Tensor
    ) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """The loss of some of a round's reports, P [B, d] of classes y [B], beside P̂ [C, d]:
        cross-entropy of the distances d_ij = ‖P_i − P̂_j‖ + δ·[j = y_i], so a report's own
        prototype has to be nearer than any other by δ."""
        margin = self.margin(means, labels)

        def loss(p: Tensor, y: Tensor, global_prototypes: Tensor) -> Tensor:
            return cross_entropy(
                -(distances(p, global_prototypes) + margin * one_hot(y, self.classes)), y
            )

        return loss

    def margin(self, means: Tensor, labels: Tensor) -> float:
        """δ = min(max_c g_c, τ): g_c is how far class c's mean report is from the nearest other
        class's; 0 if there is no other."""
        centres = ClassMeans(self.classes, means.shape[1])
        centres.add(means, labels)
        of_classes = centres.tensors()["means"]
        gaps = distances(of_classes, of_classes).fill_diagonal_(torch.inf).amin(1)
        return min(float(gaps.max()), self.options.margin_threshold) if len(gaps) > 1 else 0.0

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        check_report(upload.tensors, self.download(state, client, 0), self.classes)

    def largest_upload(self, state: Tensors) -> int:
        return largest_report(self.download(state, 0, 0), self.classes)

    def other_predictors(self, model: ClientModel, received: Tensors) -> Predictors:
        """The nearest of the global prototypes that arrived; none before the first have."""
        return nearest(model, received, self.classes)


def distances(left: Tensor, right: Tensor) -> Tensor:
    """Euclidean distances, [n, d] and [m, d] → [n, m]. As differences: products would cancel, and
    their root has no gradient at 0."""
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
