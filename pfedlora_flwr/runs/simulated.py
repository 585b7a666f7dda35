"""What a simulation goes on from: its clients keep their models in the run's directory, beside the
server's checkpoints."""

from __future__ import annotations

from pfedlora_flwr.errors import UserError, counted, some
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.layout import RunFiles


class ModelsGone(UserError):
    """More rounds would go on from models that are missing or damaged."""


def resumable_state(run: RunFiles, e: Experiment, *, set_aside: bool = False) -> ServerState | None:
    """The newest whole checkpoint; where rounds are left, of those of which all clients' models are
    here and whole. An older one is as good, the run comes to the same bits, but for one before any
    training: this may be a run of real nodes, which keep their models.

    set_aside: as `Checkpoints.load` has it. Raises ModelsGone where there is none, and UserError
    where no checkpoint can be read."""
    faults = dict[int, list[str]]()

    def lacks(state: ServerState) -> str:
        if state.round >= e.rounds:
            return ""
        if faults and not state.versions:
            return "no client has trained"
        left = e.left_by(state.round)
        held = (run.client_store(k).fault(v) for k, v in state.versions.items() if k not in left)
        faults[state.round] = [fault for fault in held if fault]
        return some(faults[state.round], 1)

    try:
        return run.checkpoints.load(set_aside=set_aside, lacks=lacks)
    except UserError:
        if not faults:
            raise
        last = max(faults)
        raise ModelsGone(
            f"output {str(run.path)!r} does not hold the models of"
            f" {counted(len(faults[last]), 'client')} after round {last}, from which more rounds"
            f" would go on ({some(faults[last], 1)}); restore them, or begin a new run; real nodes"
            " keep their own (--superlink), and `compare` removes them"
        ) from None
