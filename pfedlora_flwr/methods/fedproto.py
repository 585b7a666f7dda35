"""FedProto. Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across
Heterogeneous Clients (AAAI 2022).

Symbols: R is the input of a model's last layer; C_k^{(j)} is client k's prototype of class j, the
mean R of its |D_{k,j}| samples; C̄^{(j)} is the global prototype."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.class_means import (
    Remembered,
    by_class,
    check_counts,
    local_prototypes,
    merged_rows,
    nearest,
    no_reports,
)
from pfedlora_flwr.methods.method import HOLDS, ONE_WIDTH, Method, Predictors, Tensors, Upload
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit
from pfedlora_flwr.training.loss import cross_entropy


class FedProto(Remembered):
    """Algorithm 1 of the paper; the server remembers each client's last prototypes, so a client may
    miss rounds."""

    title = "FedProto"
    paper = "Tan et al., AAAI 2022, arXiv 2105.00243"
    idea = (
        "Each class's representations are pulled towards the clients' mean representation of the"
        " class"
    )
    class_rows = ("classes", "means", "counts")
    shares = "mean representations of the classes held, and their counts"
    assumes = f"{ONE_WIDTH}; {HOLDS}, and the number of samples of each"
    one_width = True

    @dataclass(frozen=True)
    class Options(Method.Options):
        lambda_: float = key(1.0, "λ, the weight of the distance to the global prototype", low=0)
        weighting: str = key(
            "count",
            "clients' weights in a global prototype: their samples of the class, or equal",
            choices=("count", "equal"),
        )

    def state_init(self, seed: int) -> Tensors:
        return no_reports(self.shared_width, counts=True)

    def download(self, state: Tensors, client: int, round: int) -> Tensors:
        """C̄^{(j)} of every class that anyone has reported: the mean over all reporters' last
        prototypes."""
        weights = state["counts"] if self.options.weighting == "count" else None
        return merged_rows(self.experiment, state["means"], state["classes"], self.classes, weights)

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """CE + λ·MSE(R, C̄_y); a sample whose class has no global prototype has the first term
        only. Then the prototypes."""
        prototypes, known = by_class(received, self.classes)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            representation = model.encode(inputs)  # R, [B, d]
            distance = (representation - prototypes[labels]).square().mean(1)  # [B]
            own = cross_entropy(model.last_layer()(representation), labels)
            return own + self.options.lambda_ * (known[labels] * distance).mean()

        visit.sgd("model", model.parameters(), loss, data)
        own = local_prototypes(model, self.classes, data, visit)  # C_k^{(j)}
        report = own.tensors()
        return Upload(report | {"counts": own.weights[report["classes"]].long()}, len(data))

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        super().check(upload, state, client)
        check_counts(upload.tensors["counts"], upload.samples)

    def other_predictors(self, model: ClientModel, received: Tensors) -> Predictors:
        """The nearest of the global prototypes that arrived; none before the first have."""
        return nearest(model, received, self.classes)
