"""Clients that join later, or leave: which may, and when."""

from __future__ import annotations

import itertools
from operator import itemgetter
from typing import Any

from pfedlora_flwr.errors import UserError, wrong
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.feature import Feature
from pfedlora_flwr.methods.method import Method


class Membership(Feature):
    growing = frozenset({"clients-left"})
    learns_otherwise = frozenset({"clients-joined", "clients-left"})

    def check(self, e: Experiment, x: Execution, method: type[Method]) -> None:
        _left(e, x)
        wanted = x.min_clients
        if wanted is not None and wanted > e.clients - len(e.members.left):
            raise UserError(
                f"min-clients is {wanted}; allowed: auto, or at most clients, which is {e.clients}"
                + (f", of which {len(e.members.left)} leave or have left" if e.members.left else "")
            )
        _joined(e)

    def add_result(self, result: Any, e: Experiment, round: int) -> None:
        if after := joined_after(e):
            result["joined"] = after
        if after := left_after(e, round):
            result["left"] = after

    def without_scores(self, result: Any) -> int:
        return len(result.get("left", ()))


def left_after(e: Experiment, round: int) -> dict[str, int]:
    """By client that has left by the end of `round`, the round after which it did; 0 if it was in
    none."""
    gone = sorted(e.members.left, key=itemgetter(1))
    return {str(client): max(0, last) for last, client in gone if last <= round}


def joined_after(e: Experiment) -> dict[str, int]:
    """By client that joined later, the round after which it did."""
    after: dict[str, int] = {}
    for (last, first), (_, until) in itertools.pairwise([*e.members.joined, (e.rounds, e.clients)]):
        after |= {str(client): last for client in range(first, until)}
    return after


def _joined(e: Experiment) -> None:
    told = f"clients-joined is {e.members.joined!r}"
    if not e.members.joined:
        return
    numbers = [(-1, 0), *e.members.joined, (e.rounds, e.clients)]
    if not all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(numbers)):
        raise UserError(
            f"{told}; allowed: R:N with rising R below rounds, which is {e.rounds}, and rising N"
            f" below clients, which is {e.clients}"
        )
    if e.fixes_clients:
        raise UserError(f"{told}; with {e.fixes_clients} no client can join")


def _left(e: Experiment, x: Execution) -> None:
    left = e.members.left
    told = f"clients-left is {left!r}"
    if not left:
        return
    if any(isinstance(client, str) for _, client in left):
        if not x.resume:
            raise wrong(
                "clients-left", left, "R:K or K, numbers; with resume=true sites' names, too"
            )
        return  # their numbers are the run's to tell
    lasts, clients = zip(*left, strict=True)
    if len({*clients}) < len(clients) or not {*clients} < {*range(e.clients)}:
        allowed = f"each of the clients 0 to {e.clients - 1} once, and not all of them"
        raise wrong("clients-left", left, allowed)
    if (last := max(lasts)) >= e.rounds:
        raise wrong("clients-left", left, f"R below rounds, which is {e.rounds}; {last} is not")
    if empty := [last + 1 for last in [0, *lasts] if not e.clients_in(max(1, last + 1))]:
        raise UserError(f"{told}; no client would be left in round {empty[0]}")
    if e.fixes_clients:
        raise UserError(f"{told}; with {e.fixes_clients} no client can leave")
