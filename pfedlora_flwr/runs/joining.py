"""Sites that join a federation: a resumed run with more clients than it had.

What lies before stays as it is, to the bit. Later draws are from all clients."""

from __future__ import annotations

from itertools import pairwise

from pfedlora_flwr.data.local import OWN
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import FIXED_CLIENTS, Experiment
from pfedlora_flwr.runs.layout import RunFiles


def check_join(run: RunFiles, saved: Experiment, clients: int) -> None:
    """Raises UserError unless the run of `saved` can go on with so many clients."""
    told = f"clients is {clients}, and the run in {str(run.path)!r} has {saved.clients}"
    if clients < saved.clients:
        raise UserError(
            f"{told}: a resumed run keeps its clients; one that left counts as failed when it is"
            " sampled, which min-success allows"
        )
    if run.partition != OWN:
        raise UserError(
            f"{told}: of a shared dataset each client's part would change; only sites with data of"
            " their own can join, and a new run has clients-held-out for clients that come later"
        )
    for name, attribute in FIXED_CLIENTS.items():
        if getattr(saved, attribute):
            raise UserError(f"{told}: with {name} no site can join; begin a new run")


def joined(run: RunFiles, config: RunConfig) -> RunConfig:
    """The keys of a resumed run with the record of who joins after its last round, and of who
    joined before. Raises UserError when nobody can."""
    if not (config.execution.resume and run.holds_run):
        return config
    e, saved = config.experiment, run.experiment()
    record = saved.clients_joined
    if e.clients != saved.clients:
        check_join(run, saved, e.clients)
        state = run.checkpoints.load()
        last = state.round if state else 0
        if last >= e.rounds:
            raise UserError(
                f"clients is {e.clients}, and round {last} was the run's last: give more rounds,"
                " too"
            )
        before = [pair for pair in saved.joins if pair[0] != last]
        record = ",".join(f"{r}:{n}" for r, n in [*before, (last, saved.clients)])
    return RunConfig(e.replace(clients_joined=record), config.execution)


def joined_after(e: Experiment) -> dict[str, int]:
    """By client that joined later, the round after which it did."""
    after: dict[str, int] = {}
    for (last, first), (_, until) in pairwise([*e.joins, (e.rounds, e.clients)]):
        after |= {str(client): last for client in range(first, until)}
    return after
