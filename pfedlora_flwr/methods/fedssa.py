"""FedSSA. Yi, Yu, Shi, Wang, Liu, Cui, Li: FedSSA: Semantic Similarity-based Aggregation for
Efficient Model-Heterogeneous Personalized Federated Learning (IJCAI 2024, arXiv 2312.09006).

Symbols: φ_{k,s} is the row of client k's last layer that makes the logit of class s, its weights
and its bias, d + 1 numbers; φ̄_s is the global row; μ_t weighs a client's own row when it takes up
the global one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.class_means import (
    Remembered,
    by_class,
    merged_rows,
    no_reports,
)
from pfedlora_flwr.methods.last_layer import shared_last_layer
from pfedlora_flwr.methods.method import HOLDS, ONE_WIDTH, Method, Tensors, Upload
from pfedlora_flwr.methods.standalone import train_locally
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.named import random_weights
from pfedlora_flwr.training.loop import Samples, Visit


class FedSSA(Remembered):
    """Algorithm 1 of the paper; the server remembers each client's last rows, so a client may miss
    rounds."""

    title = "FedSSA"
    paper = "Yi et al., IJCAI 2024, arXiv 2312.09006"
    idea = (
        "The last layer's rows are averaged per class over its holders, and blended into the"
        " clients' own rows in the first rounds"
    )
    class_rows = ("classes", "means")
    shares = "last layer's rows of the classes held"
    assumes = f"{ONE_WIDTH}; {HOLDS}"
    one_width = True

    @dataclass(frozen=True)
    class Options(Method.Options):
        mu: float = key(
            0.5, "μ₀, the initial weight of a client's own row relative to the global one", low=0
        )
        stable_rounds: int = key(
            2,
            "T_stable, the rounds after which that weight is 0; with 1 it never counts, since"
            " the first round has no global rows",
            low=1,
        )

    def state_init(self, seed: int) -> Tensors:
        with random_weights():  # the layer's shapes alone are asked for
            # and perhaps a bias
            width = sum(tensor[0].numel() for tensor in shared_last_layer(self, seed).values())
        return no_reports(width, counts=False)

    def download(self, state: Tensors, client: int, round: int) -> Tensors:
        """φ̄_s of every class that anyone has reported: the unweighted mean of all reporters' last
        rows."""
        return merged_rows(self.experiment, state["means"], state["classes"], self.classes)

    def local_update(
        self, model: ClientModel, received: Tensors, data: Samples, visit: Visit
    ) -> Upload:
        """Blend the global rows of the classes held into the own ones, train the whole model, send
        the rows of the classes held."""
        table, known = by_class(received, self.classes)
        held = known * torch.zeros_like(known).index_fill_(0, data.labels, 1.0)
        own = rows_of(model)
        blended = table + self.own_weight(visit.round) * own  # φ_s ← φ̄_s + μ_t φ_{k,s}
        set_rows(model, torch.where(held[:, None] > 0, blended, own))
        train_locally(model, data, visit)
        classes = data.labels.unique()  # ascending
        return Upload({"classes": classes, "means": rows_of(model)[classes]}, len(data))

    def own_weight(self, round: int) -> float:
        """μ_t = μ₀ cos(π t / (2 T_stable)) up to t = T_stable, then 0; the first round is t = 0."""
        t, last = round - 1, self.options.stable_rounds
        return self.options.mu * math.cos(math.pi * t / (2 * last)) if t < last else 0.0


def rows_of(model: ClientModel) -> Tensor:
    """The last layer's rows, weights and then bias, [C, d + 1]."""
    return torch.cat([p.detach().view(len(p), -1) for p in model.last_layer().parameters()], 1)


def set_rows(model: ClientModel, rows: Tensor) -> None:
    """Sets the last layer's rows."""
    parameters = list(model.last_layer().parameters())
    parts = rows.split([p[0].numel() for p in parameters], 1)
    with torch.no_grad():
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.view_as(parameter))
