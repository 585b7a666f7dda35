"""The adaptation of held-out clients, on the server and on their nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from statistics import fmean

import torch

from pfedlora_flwr.data.local import Site
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.held_out.record import adapts, lines_of, write
from pfedlora_flwr.federation.adapt import adapt, row_of, site_with
from pfedlora_flwr.federation.clients import Clients
from pfedlora_flwr.federation.clock import Clock
from pfedlora_flwr.federation.messages import adapted_from_metrics
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.methods.method import Method, Refused, Tensors
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.layout import RunFiles
from pfedlora_flwr.runs.rows import AdaptedRow

logger = logging.getLogger(__name__)


def is_due(e: Experiment, run: RunFiles, round: int) -> bool:
    """Whether the held-out clients are to be adapted after this round, and have not been."""
    return adapts(e, round) and not any(row["round"] == round for row in lines_of(run))


def carry_out(
    e: Experiment,
    run: RunDirectory,
    number: int,
    clients: Clients,
    refuse: Callable[[Round, int, str], None],
    enough: Callable[[Round, str, int, int], bool],
) -> None:
    """Has the held-out clients adapted, and writes their lines.

    refuse: told of an answer that cannot be, and why. enough: whether so many clients of those
    that were asked do, or else they are asked once more; may end the run."""
    told = f"the adaptation of held-out clients after round {number}"
    asked = ["all" if size is None else str(size) for size in e.held_out.samples]
    rows = list[AdaptedRow]()
    while True:
        round = Round(number, [], Clock())
        messages = clients.messages(round, e.held_out_clients, "adapting")
        for client, reply in clients.ask(round, messages, "adapting").items():
            try:
                rows += adapted_from_metrics(reply.metrics, number, client, asked)
            except Refused as refusal:
                refuse(round, client, str(refusal))
        if enough(round, told, len({row["client"] for row in rows}), e.held_out.clients):
            break
        rows.clear()
    write(run, e, number, sorted(rows, key=lambda row: row["client"]))
    if rows:
        means = [fmean(row[name] for row in rows) for name in ("accuracy", "alone_accuracy")]
        text = "held-out clients after round %d · accuracy %.4f · alone %.4f"
        logger.info(text, number, *means)


def adapted(
    method: Method, received: Tensors, site: Site, client: int, after: int, device: torch.device
) -> Iterator[AdaptedRow]:
    """A run's held-out client, adapted with each of the numbers of samples of `held-out.samples`.

    after: the round whose state is received."""
    e = method.experiment
    received = {name: tensor.to(device) for name, tensor in received.items()}
    for asked in e.held_out.samples:
        data = site_with(site, asked, e.seed, client).load(device)
        found = adapt(method, received, data, client, e.held_out.rounds)
        yield row_of(method, found, data, client, after, asked)
