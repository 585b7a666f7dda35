"""More rounds than a run was begun with: whether it can have them, and which of its rounds is done again."""

from __future__ import annotations

from pathlib import Path

from pfedlora_flwr.data.local import task_of
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods import registry
from pfedlora_flwr.runs.checkpoint import Checkpoints


def check_extension(
    saved: Experiment, wanted: Experiment, checkpoints: Checkpoints, path: Path
) -> None:
    """Raises UserError unless the run of `saved` in `path` can go on to the rounds of `wanted` and be what that one is from the start."""
    if wanted.rounds < saved.rounds:
        raise UserError(
            f"rounds is {wanted.rounds}; the run in {str(path)!r} ends at {saved.rounds}: it can be extended, not shortened"
        )
    if wanted.rounds == saved.rounds:
        return
    whose = f"lr-schedule={saved.lr_schedule}" if saved.lr_schedule != "constant" else ""
    if registry.make(saved, task_of(saved)).uses_rounds:
        whose = f"method {saved.method}"
    if whose:
        raise UserError(
            f"rounds is {wanted.rounds}; with {whose} each round depends on how many there are: "
            f"a run of {saved.rounds} cannot be extended, begin a new one"
        )
    again = repeated_round(saved, wanted, checkpoints)
    first = 0 if saved.evaluate_initial else 1  # the first round that leaves a checkpoint
    if again is not None and again > first and again - 1 not in checkpoints.rounds():
        raise UserError(
            f"the run in {str(path)!r} cannot be extended: round {again} has to be done again, "
            f"since evaluate-every={saved.evaluate_every} does not evaluate in it, and the checkpoint before it is not there"
        )


def repeated_round(saved: Experiment, wanted: Experiment, checkpoints: Checkpoints) -> int | None:
    """The last round of the run of `saved`, if it is done and was evaluated only for being the last; otherwise None.

    The run of `wanted`, which has more rounds, does not evaluate in it. What an evaluation leaves (accuracies, costs on the wire, clients
    counted as evaluated) is in its lines and its checkpoint: from the checkpoint before it comes to what it would have been.
    """
    last = saved.rounds
    extra = wanted.rounds > last and not wanted.evaluates(last)
    return last if extra and checkpoints.rounds()[-1:] == [last] else None
