"""What differential privacy will cost a run, in lines, before it starts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.dp.accountant import epsilon, planned
from pfedlora_flwr.features.dp.budget import Budget, counts_on, file_of
from pfedlora_flwr.features.dp.link import check_clip, largest_part, resolution, size_of
from pfedlora_flwr.features.dp.spent import Spent
from pfedlora_flwr.federation.server_state import first_state
from pfedlora_flwr.methods.lora_factors import A, B
from pfedlora_flwr.models.private import parts_of
from pfedlora_flwr.runs.begin import Begin, Fresh

_FEW = 5000
"""Records below which class means alone do as well (docs/fidelity.md)."""


def plan(begin: Begin) -> Iterable[str]:
    """ε of the whole run, and its noise beside the clip. Raises UserError for a clip that rounding
    under masks would use up, or without dp-accounting."""
    setup, known = Setup.of(begin.wanted), "past and planned" if begin.goes_on else "planned"
    e = setup.experiment
    if e.noises_gradients:
        yield from _of_records(setup, begin, known)
    if not e.noises_rounds:
        return
    part = largest_part(e, setup.method)
    if e.dp.of_users:
        check_clip(e, part)
    budget = Budget(_counted_in(begin), e)
    more = planned(e, begin.after + 1)
    z, size, most = budget.noise, size_of(part), budget.most_with(more)
    found = budget.epsilon(most)
    noise = z * e.dp.norm * math.sqrt(size) / e.sampled
    yield (
        f"dp: ε = {found:.4g} at δ = {e.dp.delta:g} for {most} {known} participations of a client,"
        f" by z = {z:.4g}"
    )
    if e.noises_sums:
        yield from _of_sums(setup, z, most)
        return
    equal = _clients(math.ceil(z * math.sqrt(size)))
    yield (
        f"dp: the noise of a round's mean has the norm {noise:.3g}, the clip is {e.dp.norm:g}"
        f" ({size:,} numbers, {_clients(e.sampled)} a round)"
        f"{f'; the two are equal with {equal} a round' if z else ''}"
    )
    if (finest := resolution(part)) >= e.dp.norm:
        yield (
            f"warning: dp.clip is {e.dp.norm:g}, and the shared tensors are rounded by up to"
            f" {finest:.2g}: most updates will be rounding"
        )
    yield from _large_delta(e, e.clients, "clients", "client")
    names = list(first_state(e, setup.method))
    if all(any(factor in name for name in names) for factor in (A, B)):
        yield (
            f"dp: {e.method} shares both matrices of LoRA, and their noise multiplies; ffa_lora"
            " shares one"
        )
    if e.dp.trained_down and getattr(e.options, "adapter_down", "fixed") in (None, "trained"):
        options = replace(e.options, adapter_down="fixed")
        other = replace(setup, experiment=e.replace(options=options))
        fixed = size_of(largest_part(other.experiment, other.method))
        if fixed < size:
            yield (
                f"dp: adapter.down=trained shares {size:,} numbers, fixed {fixed:,}: the noise is"
                f" {math.sqrt(size / fixed):.2g} times as large, and that of the two matrices"
                " multiplies"
            )


def of_all(runs: Sequence[Experiment]) -> Iterable[str]:
    """What runs on the same clients spend together."""
    private = [e for e in runs if e.dp.enabled]
    spent = [_planned(e) for e in private]
    if private:
        known = f"ε = {sum(s for s in spent if s):.4g}" if all(spent) else "what its rows decide"
        yield f"dp: all {len(private)} runs together spend {known} of a client, added up"


def _planned(e: Experiment) -> float | None:
    """What a run may spend of a client; None where only its rows tell."""
    if not e.dp.of_users:
        return e.dp.epsilon
    budget = Budget(None, e)
    return budget.epsilon(budget.most_with(planned(e)))


def _counted_in(begin: Begin) -> Path | None:
    """The record in which the run goes on to count, if there is one."""
    if begin.goes_on:
        return file_of(begin.run)
    earlier = begin.renewal if isinstance(begin, Fresh) else None
    if earlier and earlier.old and counts_on(earlier.saved, begin.wanted.experiment):
        return file_of(earlier.old)
    return None


def _of_records(setup: Setup, begin: Begin, known: str) -> Iterable[str]:
    """The same of single records: for the client whose records pay most, by its own account."""
    e, method, clients = setup.experiment, setup.method, setup.partition.clients
    epochs = method.record_epochs(e)
    more = planned(e, begin.after + 1)
    found = dict[tuple[int, int], tuple[int, Spent]]()  # of those that pay alike, one
    for client in sorted(more):
        n = len(clients[client].train)
        folder = begin.run.client_store(client).folder if begin.goes_on else None
        spent = Spent(folder, e, client, n, epochs)
        found.setdefault((spent.visits + more[client], parts_of(n, e.batch_size)), (client, spent))
    if not found:
        return
    if e.dp.epsilon is not None:  # the same ε for all: of the one that needs most noise
        key = max(found, key=lambda key: key[0] / key[1])
        found = {key: found[key]}
    costs = {key: spent.epsilon(more[client]) for key, (client, spent) in found.items()}
    visits, parts = most = max(costs, key=lambda key: costs[key])
    client, spent = found[most]
    yield (
        f"dp: ε of a record is at most {costs[most]:.4g} at δ = {e.dp.delta:g}: of client {client},"
        f" by z = {spent.noise:.4g}, after {visits * parts * epochs} steps in {visits}"
        f" {known} visits, each of which takes a record with"
        f" probability 1/{parts}"
    )
    largest = max(len(clients[k].train) for k in more)
    yield from _large_delta(e, largest, "training records of a client", "record")
    size, n = size_of(first_state(e, method)), len(clients[client].train)
    yield (
        "dp: the noise of a step's mean gradient there has the norm"
        f" {spent.noise * e.dp.norm * math.sqrt(size) * parts / n:.3g}, the clip is {e.dp.norm:g}"
        f" ({size:,} numbers, {n / parts:.3g} records a step)"
    )


def _of_sums(setup: Setup, z: float, most: int) -> Iterable[str]:
    """What the noise on sums is beside the records."""
    e, clients = setup.experiment, setup.partition.clients
    n, weights = sum(len(split.train) for split in clients), e.options.weights
    yield (
        f"dp: the same noise has ε = {epsilon(z / 2, most, e.dp.delta):.4g} where a record is"
        f" replaced by another; on n_c it is {z / weights['counts']:.3g}, on a number of a class"
        f" sum {z / weights['sums']:.3g}, of {n} records in all"
    )
    if n < _FEW and getattr(setup.method, "squares", False) and weights["gram"]:
        yield (
            f"warning: with fewer than {_FEW} records the second moment is mostly noise:"
            " sums.dp-moment=0 leaves it out"
        )
    yield from _large_delta(e, n, "training records", "record")


def _large_delta(e: Experiment, count: int, what: str, one: str) -> Iterable[str]:
    """A warning where δ is not far below the chance of one among so many."""
    if e.dp.delta * count * 10 >= 1:
        yield (
            f"warning: dp.delta is {e.dp.delta:g}; to publish one of the {count} {what} whole, by"
            f" chance, has δ = {1 / count:.2g}: take less than {0.1 / count:.2g}, or ε says little"
            f" of a {one}"
        )


def _clients(count: int) -> str:
    return f"{count:,} client" + ("" if count == 1 else "s")
