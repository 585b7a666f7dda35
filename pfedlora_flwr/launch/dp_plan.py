"""What differential privacy will cost a run, in lines, before it starts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from pfedlora_flwr.data.local import shared_partition, task_of
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.dp import check_clip, largest_part, resolution, size_of
from pfedlora_flwr.federation.server_state import first_state
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.lora_factors import A, B
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.models.private import parts_of
from pfedlora_flwr.runs.accountant import epsilon, planned
from pfedlora_flwr.runs.budget import Budget
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.spent import Spent

_FEW = 5000
"""Records below which class means alone do as well (docs/fidelity.md)."""


def plan(config: RunConfig, run: RunDirectory) -> Iterable[str]:
    """ε of the whole run, and its noise beside the clip. Raises UserError for a clip that rounding
    under masks would use up, or without dp-accounting."""
    e = config.experiment
    if e.dp_of_records:
        yield from _of_records(config, run)
    if not e.dp_of_rounds:
        return
    assert e.dp_clip is not None
    method = _method(e, config)
    part = largest_part(e, method)
    if e.dp_of_users:
        check_clip(e, part)
    resumed = config.execution.resume
    budget = Budget(run.dp_file if resumed else None, e)
    more = planned(e, run.last_round() + 1 if resumed else 1)
    z, size, most = budget.noise, size_of(part), budget.most_with(more)
    found = budget.epsilon(most)
    noise = z * e.dp_clip * math.sqrt(size) / e.sampled
    which = "past and planned" if resumed else "planned"
    yield (
        f"dp: ε = {found:.4g} at δ = {e.dp_delta:g} for {most} {which} participations of a client,"
        f" by z = {z:.4g}"
    )
    if e.dp_of_sums:
        yield from _of_sums(e, config, z, most)
        return
    yield (
        f"dp: the noise of a round's mean has the norm {noise:.3g}, the clip is {e.dp_clip:g}"
        f" ({size:,} numbers, {_clients(e.sampled)} a round)"
        + (
            f"; the two are equal with {_clients(math.ceil(z * math.sqrt(size)))} a round"
            if z
            else ""
        )
    )
    if (finest := resolution(part)) >= e.dp_clip:
        yield (
            f"warning: dp.clip is {e.dp_clip:g}, and the shared tensors are rounded by up to"
            f" {finest:.2g}: most updates will be rounding"
        )
    yield from _large_delta(e, e.clients, "clients", "client")
    names = list(first_state(e, method))
    if all(any(factor in name for name in names) for factor in (A, B)):
        yield (
            f"dp: {e.method} shares both matrices of LoRA, and their noise multiplies; ffa_lora"
            " shares one"
        )
    if e.dp_trained_down and getattr(e.options, "adapter_down", "fixed") in (None, "trained"):
        options = dataclasses.replace(e.options, adapter_down="fixed")
        other = e.replace(options=options)
        fixed = size_of(largest_part(other, _method(other, config)))
        if fixed < size:
            yield (
                f"dp: adapter.down=trained shares {size:,} numbers, fixed {fixed:,}: the noise is"
                f" {math.sqrt(size / fixed):.2g} times as large, and that of the two matrices"
                " multiplies"
            )


def _of_records(config: RunConfig, run: RunDirectory) -> Iterable[str]:
    """The same of single records: for the client whose records pay most, by its own account."""
    e, resumed = config.experiment, config.execution.resume
    method, clients = _method(e, config), shared_partition(e, config.execution.data_path)[1].clients
    epochs = method.record_epochs(e)
    more = planned(e, run.last_round() + 1 if resumed else 1)
    found = dict[tuple[int, int], tuple[int, Spent]]()  # of those that pay alike, one
    for client in sorted(more):
        n = len(clients[client].train)
        folder = run.client_store(client).folder if resumed else None
        spent = Spent(folder, e, client, n, epochs)
        found.setdefault((spent.visits + more[client], parts_of(n, e.batch_size)), (client, spent))
    if not found:
        return
    if e.dp_epsilon is not None:  # the same ε for all: of the one that needs most noise
        key = max(found, key=lambda key: key[0] / key[1])
        found = {key: found[key]}
    costs = {key: spent.epsilon(more[client]) for key, (client, spent) in found.items()}
    visits, parts = most = max(costs, key=lambda key: costs[key])
    client, spent = found[most]
    yield (
        f"dp: ε of a record is at most {costs[most]:.4g} at δ = {e.dp_delta:g}: of client {client},"
        f" by z = {spent.noise:.4g}, after {visits * parts * epochs} steps in {visits}"
        f" {'past and planned' if resumed else 'planned'} visits, each of which takes a record with"
        f" probability 1/{parts}"
    )
    largest = max(len(clients[k].train) for k in more)
    yield from _large_delta(e, largest, "training records of a client", "record")
    assert e.dp_clip is not None
    size, n = size_of(first_state(e, method)), len(clients[client].train)
    yield (
        "dp: the noise of a step's mean gradient there has the norm"
        f" {spent.noise * e.dp_clip * math.sqrt(size) * parts / n:.3g}, the clip is {e.dp_clip:g}"
        f" ({size:,} numbers, {n / parts:.3g} records a step)"
    )


def _of_sums(e: Experiment, config: RunConfig, z: float, most: int) -> Iterable[str]:
    """What the noise on sums is beside the records."""
    clients = shared_partition(e, config.execution.data_path)[1].clients
    n, weights = sum(len(split.train) for split in clients), e.options.weights
    yield (
        f"dp: the same noise has ε = {epsilon(z / 2, most, e.dp_delta):.4g} where a record is"
        f" replaced by another; on n_c it is {z / weights['counts']:.3g}, on a number of a class"
        f" sum {z / weights['sums']:.3g}, of {n} records in all"
    )
    if n < _FEW and getattr(_method(e, config), "squares", False) and weights["gram"]:
        yield (
            f"warning: with fewer than {_FEW} records the second moment is mostly noise:"
            " sums.dp-moment=0 leaves it out"
        )
    yield from _large_delta(e, n, "training records", "record")


def _large_delta(e: Experiment, count: int, what: str, one: str) -> Iterable[str]:
    """A warning where δ is not far below the chance of one among so many."""
    if e.dp_delta * count * 10 >= 1:
        yield (
            f"warning: dp.delta is {e.dp_delta:g}; to publish one of the {count} {what} whole, by"
            f" chance, has δ = {1 / count:.2g}: take less than {0.1 / count:.2g}, or ε says little"
            f" of a {one}"
        )


def _clients(count: int) -> str:
    return f"{count:,} client" + ("" if count == 1 else "s")


def _method(e: Experiment, config: RunConfig) -> Method:
    return registry.make(e, task_of(e, config.execution.data_path))
