"""A client that was not in the run, adapted: it trains a personal model by the method's own local
rule. Each of its visits starts from the same shared state, and its upload is dropped.

It is a computation, without messages or disk: a run's held-out clients and `pfedlora adapt` both
call it, and get the same bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, isfinite
from typing import cast

import numpy as np
from torch import Tensor, nn

from pfedlora_flwr.data.local import LocalData, Site
from pfedlora_flwr.data.outputs import operations, with_outputs_kept
from pfedlora_flwr.data.partition import few
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation import visit as visits
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method, Tensors
from pfedlora_flwr.methods.standalone import Standalone
from pfedlora_flwr.models.kept import stored
from pfedlora_flwr.models.named import without_path
from pfedlora_flwr.runs.checkpoint import Counts
from pfedlora_flwr.runs.rows import AdaptedRow
from pfedlora_flwr.training.device import channels_last


@dataclass(frozen=True)
class Adapted:
    """A newcomer's model after its visits, in evaluation mode.

    flops: of its training. counts: of its evaluation on its own validation and test parts."""

    model: nn.Module
    visits: int
    flops: int
    counts: Counts

    def tensors(self) -> dict[str, Tensor]:
        """What a client keeps of the model, on the CPU."""
        return stored(self.model)


def adapt(method: Method, received: Tensors, data: LocalData, client: int, count: int) -> Adapted:
    """The client's model after `count` visits, numbered from 1 as in a run of that many rounds.

    received: what a client is sent that was not in the run, where `data` is. Raises UserError if
    its training diverges."""
    e = method.experiment.replace(rounds=count)
    method = registry.make(e, method.task)
    model = channels_last(method.initial_model(client).to(data.train.labels.device))
    flops = sum(operations(model, data, e).values())
    data = with_outputs_kept(model, data, e)
    for number in range(1, count + 1):
        _, done = visits.visit(method, model, received, data.train, client, number)
        if bad := [loss for loss in done.losses.values() if not isfinite(loss)]:
            raise UserError(
                f"the training of client {client} by {e.method} diverged in visit {number} of its"
                f" adaptation: its loss is {bad[0]}; a smaller lr, or inputs of a"
                " smaller range may help"
            )
        flops += sum(done.flops.values())
    return Adapted(model, count, flops, visits.evaluate(method, model, data))


def alone(method: Method, data: LocalData, client: int, adapted: Adapted) -> Adapted:
    """The same client by Standalone, after as many visits as the operations last for that it took
    to be adapted, rounded up; as many as that took, where the method counts none."""
    e = method.experiment.replace(
        method="standalone", method_options="", options=Standalone.Options()
    )
    by_itself = registry.make(e, method.task)
    first = adapt(by_itself, {}, data, client, 1)  # all visits run the same operations
    once = sum(operations(first.model, data, e).values())
    each = first.flops - once
    spent = adapted.flops - once  # nothing, where an own method's visits count none
    count = ceil(spent / each) if each and spent > 0 else adapted.visits
    return first if count == 1 else adapt(by_itself, {}, data, client, count)


def site_with(site: Site, samples: int | None, seed: int, client: int) -> Site:
    """The site with at most so many training samples, taken from its classes in turn; None: all.
    Fewer are always some of more; the validation and test parts stay."""
    train = site.split.train
    if samples is None or samples >= len(train):
        return site
    fewer = few(np.asarray(site.dataset.labels), train, samples, seed, client)
    return replace(site, split=replace(site.split, train=fewer))


def row_of(
    method: Method, adapted: Adapted, data: LocalData, client: int, after: int, asked: int | None
) -> AdaptedRow:
    """The line of an adapted client, with what it gets alone by as many operations beside it."""
    beside = alone(method, data, client, adapted)
    counts, others = adapted.counts, beside.counts
    row = {
        "round": after,
        "client": client,
        "model": without_path(method.model_of(client)),
        "asked": "all" if asked is None else str(asked),
        "samples": len(data.train),
        "test": counts.test,
        **counts.line(),
        "visits": adapted.visits,
        "flops": adapted.flops,
        "model_sha256": tensors_sha256(adapted.tensors()),
        "alone_accuracy": others.accuracy("test"),
        "alone_validation_accuracy": others.accuracy("validation"),
        "alone_visits": beside.visits,
        "alone_flops": beside.flops,
    }
    return cast(AdaptedRow, row)
