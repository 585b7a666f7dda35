"""Whether a simulation can go on: its clients keep their models in the run's directory, beside the
server's checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from pfedlora_flwr.errors import UserError, counted, some
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.layout import RunFiles


def models_gone(run: RunFiles, e: Experiment) -> bool:
    """Whether rounds are left and every client's model is missing or damaged."""
    faults = _faults(run, e, run.checkpoints.load())
    return bool(next(faults, "")) and all(faults)  # one that is whole ends the search


def check_models(run: RunFiles, e: Experiment) -> None:
    """Raises UserError where rounds are left and a client's model, or its state on the server, is
    missing or not what the checkpoint knows: it would begin anew, and the run come to other
    bits."""
    state = run.checkpoints.load()
    found = [*_faults(run, e, state)]
    faults = [fault for fault in found if fault]
    if state is None or not faults:
        return
    ways = ["restore what is missing or damaged"] if len(faults) < len(found) else []
    with suppress(UserError):  # of a checkpoint that cannot be read
        before = run.checkpoints.load(before=state.round)
        if before and before.versions and not any(_faults(run, e, before)):
            newest = run.checkpoints.paths()[-1]
            ways.append(f"remove {newest} to go on after round {before.round}")
    ways.append("begin a new run")
    raise UserError(
        f"output {str(run.path)!r} does not hold the models of {counted(len(faults), 'client')}"
        f" after round {state.round}, from which more rounds would go on ({some(faults, 1)}):"
        f" {', or '.join(ways)}; real nodes keep their own (superlink=…), and `compare` removes"
        " them"
    )


def _faults(run: RunFiles, e: Experiment, state: ServerState | None) -> Iterator[str]:
    """Of each client that is to go on why it cannot; empty where it can. Of nobody if no round is
    left."""
    if state is None or state.round >= e.rounds:
        return
    left = e.left_by(state.round + 1)
    for client, version in state.versions.items():
        if client not in left:
            fault = run.client_store(client).fault(version, state.models.get(client))
            if not fault and client in state.states:
                fault = run.server_store(client).fault(version, state.states[client])
            yield fault
