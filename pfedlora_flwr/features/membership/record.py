"""Sites that join a federation, or leave it: a resumed run with more clients than it had, or
without some of them.

What lies before stays as it is, to the bit. Later draws are from those that are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pfedlora_flwr.config import check
from pfedlora_flwr.data.local import OWN
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import KEYS, Experiment
from pfedlora_flwr.features.membership.keys import Members
from pfedlora_flwr.methods import registry
from pfedlora_flwr.runs.layout import RunFiles
from pfedlora_flwr.runs.site_names import client_of

LATER = "a new run has clients-held-out for clients that"


def by_numbers(e: Experiment) -> Experiment:
    """Without what a resumed run says by sites' names, which nodes do not know."""
    left = [(last, client) for last, client in e.members.left if not isinstance(client, str)]
    return e.replace(**{"members.left": text_of(left)})


def text_of(left: Iterable[tuple[int, int | str]]) -> str:
    """`clients-left` for these clients, each behind the last round that it was in."""
    return ",".join(f"{r}:{k}" if r >= 0 else str(k) for r, k in left)


def as_before(wanted: Experiment, saved: Experiment) -> Experiment:
    """`wanted` with as many rounds, and the same clients, as the run of `saved`."""
    return wanted.replace(rounds=saved.rounds, clients=saved.clients, members=saved.members)


def members_of(keys: Mapping[str, Any]) -> Members:
    """Who left a run of these keys, as its file has them. Raises UserError for keys that are
    none."""
    return Members(left=KEYS["clients-left"].parse(keys.get("clients-left", "")))


def check_clients(run: RunFiles, saved: Experiment, clients: int) -> None:
    """Raises UserError unless the run of `saved` can go on with so many clients."""
    told = f"clients is {clients}, and the run in {str(run.path)!r} has {saved.clients}"
    if clients < saved.clients:
        raise UserError(
            f"{told}: a resumed run keeps its clients' numbers; clients-left=K lets client K leave"
        )
    if run.partition != OWN:
        raise UserError(
            f"{told}: of a shared dataset each client's part would change; only sites with data of"
            f" their own can join, and {LATER} come later"
        )
    if saved.fixes_clients:
        raise UserError(f"{told}: with {saved.fixes_clients} no site can join; begin a new run")


def resumed(run: RunFiles, config: RunConfig) -> RunConfig:
    """The keys of a resumed run with the record of who joins or leaves after its last round, and
    of who did before. Raises UserError when nobody can, or when keys do not go together with it."""
    joined, left = _recorded(run, config)
    keys = {"members.joined": joined, "members.left": left}
    config = RunConfig(config.experiment.replace(**keys), config.execution)
    check(config, registry.find(config.experiment.method))
    return config


def _recorded(run: RunFiles, config: RunConfig) -> tuple[str, str]:
    """The `clients-joined` and `clients-left` of a resumed run with these keys."""
    e, saved = config.experiment, run.experiment()
    joined, left = str(saved.members.joined), str(saved.members.left)
    gone = {client for _, client in saved.members.left}
    said = [(after, str(client)) for after, client in e.members.left if client not in gone]
    leaving = [(after, k) for after, client in said if (k := client_of(run, client)) not in gone]
    if e.clients == saved.clients and not leaving:
        return joined, left
    last, told = run.last_round(), f"clients is {e.clients}"
    if e.clients != saved.clients:
        check_clients(run, saved, e.clients)
        # or some have joined since, and none was trained
        if last not in dict(saved.members.joined):
            joined = ",".join(f"{r}:{n}" for r, n in [*saved.members.joined, (last, saved.clients)])
    if leaving:
        told = f"clients-left is {e.members.left!r}"
        if wrong := [client for after, client in leaving if after not in (-1, last)]:
            raise UserError(
                f"{told}, and the run in {str(run.path)!r} is after round {last}:"
                f" clients-left={wrong[0]} lets client {wrong[0]} leave now"
            )
        left = ",".join([*filter(None, [left]), *(f"{last}:{client}" for _, client in leaving)])
    if last >= e.rounds:
        raise UserError(f"{told}, and round {last} was the run's last: give more rounds, too")
    return joined, left
