"""Class means: what clients of FD, FedProto and others send, what the server remembers of them, and
how it averages them by class.

A report is `classes` int64 [m], ascending, and `means` float32 [m, d], a row for each class that
the client holds; FedProto adds `counts` int64 [m]. The server's table, where it keeps one, is all
reporters' last rows, with `clients` int64 [r] before them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods.method import (
    ByClient,
    Method,
    Predictors,
    Refused,
    Tensors,
    Upload,
    check_layout,
)
from pfedlora_flwr.methods.robust import rule_of
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.loop import Samples, Visit


class ClassMeans:
    """Weighted means by class, summed in float64 where the values are. Nothing in `add` depends on
    which classes occur."""

    def __init__(self, classes: int, width: int, device: torch.device | str = "cpu") -> None:
        self.sums = torch.zeros(classes, width, dtype=torch.float64, device=device)
        self.weights = torch.zeros(classes, dtype=torch.float64, device=device)

    def add(self, values: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Takes in values [B, d] of classes `labels` [B]; each weighs 1, or its `weights` [B]."""
        weights = (
            torch.ones_like(labels, dtype=torch.float64) if weights is None else weights.double()
        )
        self.sums.index_add_(0, labels, values.detach().double() * weights[:, None])
        self.weights.index_add_(0, labels, weights)

    def tensors(self) -> Tensors:
        """`classes` and `means` of the classes that have occurred; the others are left out, so
        nothing is divided by 0."""
        classes = self.weights.nonzero().squeeze(1)
        return {
            "classes": classes,
            "means": (self.sums[classes] / self.weights[classes, None]).float(),
        }


def merged_rows(
    e: Experiment, values: Tensor, labels: Tensor, classes: int, weights: Tensor | None = None
) -> Tensors:
    """`classes` and `means` of rows [m, d] of several clients: by class the weighted mean, or what
    `aggregation` puts in its place."""
    if rule := rule_of(e):
        return rule.rows(values, labels)
    means = ClassMeans(classes, values.shape[1])
    means.add(values, labels, weights)
    return means.tensors()


def local_prototypes(model: ClientModel, classes: int, data: Samples, visit: Visit) -> ClassMeans:
    """R̄_c, the mean input of the last layer over the client's samples of each class c: one clean
    pass of the model as it is."""
    model.eval()
    own = ClassMeans(classes, model.width, data.labels.device)
    own.add(visit.infer("prototypes", model.encode, data), data.labels)
    return own


def by_class(received: Tensors, classes: int) -> tuple[Tensor, Tensor]:
    """The received means as a table [classes, d], 0 if there is none, and which rows are known,
    [classes], 1.0 or 0.0."""
    means = received["means"]
    table = means.new_zeros(classes, means.shape[1]).index_copy_(0, received["classes"], means)
    return table, means.new_zeros(classes).index_fill_(0, received["classes"], 1.0)


def nearest(model: ClientModel, received: Tensors, classes: int) -> Predictors:
    """`prototype`: scores of inputs by the received prototypes, the nearer the higher,
    [B, classes]; −∞ for a class that has none. Nothing before the first have arrived."""
    table, known = by_class(received, classes)

    def scores(inputs: Tensor) -> Tensor:
        return torch.where(known > 0, -torch.cdist(model.encode(inputs), table), -torch.inf)

    return {"prototype": scores} if len(received["classes"]) else {}


def no_reports(width: int, *, counts: bool) -> Tensors:
    """The server's table before anyone has reported."""
    ids = {name: torch.zeros(0, dtype=torch.int64) for name in ("clients", "classes", "counts")}
    table = {"clients": ids["clients"], "classes": ids["classes"], "means": torch.zeros(0, width)}
    return table | {"counts": ids["counts"]} if counts else table


def remember(state: Tensors, uploads: ByClient) -> Tensors:
    """The table with the uploads' rows in the place of these clients' last ones; by client, then by
    class."""
    kept = ~torch.isin(state["clients"], torch.tensor(list(uploads)))
    parts = {name: [rows[kept]] for name, rows in state.items()}
    for client, upload in uploads.items():
        for name, rows in upload.tensors.items():
            parts[name].append(rows)
        parts["clients"].append(torch.full_like(upload.tensors["classes"], client))
    table = {name: torch.cat(rows) for name, rows in parts.items()}
    order = table["clients"].argsort(stable=True)
    return {name: rows[order] for name, rows in table.items()}


def check_report(tensors: Tensors, state: Tensors, classes: int) -> None:
    """Raises Refused unless `tensors` are a report: a row for each of some distinct classes, in
    ascending order."""
    ids = tensors.get("classes", torch.zeros(0))
    rows = len(ids) if ids.ndim == 1 else 0
    columns = {name: like for name, like in state.items() if name != "clients"}
    check_layout(
        tensors,
        {
            n: torch.empty(rows, *like.shape[1:], dtype=like.dtype, device="meta")
            for n, like in columns.items()
        },
    )
    check_classes(ids, classes, least=1)


def check_classes(ids: Tensor, classes: int, *, least: int = 0) -> None:
    """Raises Refused unless these are distinct classes in ascending order, at least so many."""
    ascending = bool((ids[1:] > ids[:-1]).all())  # a difference of int64s may overflow
    among = not len(ids) or (int(ids[0]) >= 0 and int(ids[-1]) < classes)
    if len(ids) < least or not among or not ascending:
        raise Refused(
            f"classes are {ids[:20].tolist()}, expected some of 0 to {classes - 1}, each once, in"
            " ascending order"
        )


def check_counts(counts: Tensor, samples: int) -> None:
    """Raises Refused unless a report's counts are numbers ≥ 1 that sum to the upload's samples."""
    if int(counts.min()) < 1 or sum(counts.tolist()) != samples:  # int64s' sum may overflow
        raise Refused(
            f"counts are {counts[:20].tolist()}, expected numbers ≥ 1 that sum to its"
            f" {samples} samples"
        )


class Remembered(Method):
    """Those whose server remembers each client's last report."""

    merges = "class means"
    averages_rows = True

    def aggregate(self, uploads: ByClient, state: Tensors, round: int) -> Tensors:
        return remember(state, uploads)

    def check(self, upload: Upload, state: Tensors, client: int) -> None:
        check_report(upload.tensors, state, self.classes)

    def largest_upload(self, state: Tensors) -> int:
        return largest_report(state, self.classes)


def largest_report(state: Tensors, classes: int) -> int:
    """Bytes of a report on every class."""
    return classes * sum(
        t.element_size() * math.prod(t.shape[1:]) for name, t in state.items() if name != "clients"
    )
