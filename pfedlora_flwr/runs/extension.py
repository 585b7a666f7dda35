"""Whether a run can be extended to more rounds, by what it is and by what it has spent."""

from __future__ import annotations

from pathlib import Path

from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.runs.budget import Budget
from pfedlora_flwr.runs.layout import RunFiles


def check_goes_on(run: RunFiles, wanted: Experiment) -> None:
    """Raises UserError unless the run is of this Experiment, or of one that this one extends."""
    saved = run.experiment()
    same = wanted.replace(
        rounds=saved.rounds,
        clients=saved.clients,
        clients_joined=saved.clients_joined,
        clients_left=saved.clients_left,
    )
    check_same(run, same, "resume it with its own keys; only more rounds extend it")
    check_extension(run, wanted)
    _check_budget(saved, wanted, run.last_round(), run.dp_file)


def check_same(run: RunFiles, wanted: Experiment, advice: str) -> None:
    """Raises UserError, with the keys that differ, when the run is of another Experiment."""
    a, b = run.experiment().flat(), wanted.flat()
    if different := [
        f"{name}: {a.get(name)!r} → {b.get(name)!r}" for name in a | b if a.get(name) != b.get(name)
    ]:
        raise UserError(
            f"output {str(run.path)!r} holds a different Experiment ({'; '.join(different)});"
            f" {advice}"
        )


def check_extension(run: RunFiles, wanted: Experiment) -> None:
    """Raises UserError unless the run can go on to the rounds of `wanted` and be what that one is
    from the start."""
    config, path = run.run_config(), run.path
    saved = config.experiment
    if wanted.rounds < saved.rounds:
        raise UserError(
            f"rounds is {wanted.rounds}; the run in {str(path)!r} ends at {saved.rounds}: it can be"
            f" extended, not shortened; rounds={saved.rounds} is its length"
        )
    if wanted.rounds == saved.rounds:
        return
    whose = f"lr-schedule={saved.lr_schedule}" if saved.lr_schedule != "constant" else ""
    if Setup.of(config).method.uses_rounds:
        whose = f"method {saved.method}"
    if whose:
        raise UserError(
            f"rounds is {wanted.rounds}; with {whose} each round depends on how many there are: "
            f"a run of {saved.rounds} cannot be extended; start a new one"
        )


def _check_budget(saved: Experiment, wanted: Experiment, done: int, record: Path) -> None:
    """Raises UserError if a run that is to have more rounds would exceed `dp.epsilon` in them.

    done: its rounds so far. record: what it has spent."""
    if saved.dp.epsilon is None or wanted.rounds == saved.rounds:
        return
    if saved.noises_gradients:
        raise UserError(
            f"rounds is {wanted.rounds}; with dp.level=record and dp.epsilon each client has noise"
            f" for the planned rounds, {saved.rounds}: a run cannot be extended; start a new one"
        )
    if not record.exists():
        return
    found = Budget(record, saved).beyond_with(wanted.rounds, done)
    if found is not None:
        raise UserError(
            f"rounds is {wanted.rounds}; they would bring ε to {found:.4g}, dp.epsilon is"
            f" {saved.dp.epsilon:g}: a run cannot be extended beyond it; start a new one"
        )


def unused_rounds(wanted: int, rounds: int, name: str) -> str:
    """A line on the `rounds` that the file `name` wants of a run that has so many; empty if those
    are the same."""
    if wanted == rounds:
        return ""
    return f"{name} says rounds={wanted}; this run ends at {rounds}" + (
        f"; rounds={wanted} extends it" if wanted > rounds else ""
    )
