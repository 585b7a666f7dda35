"""`pfedlora list`: the runs in a folder and below, how far each is, and the keys in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from rich.table import Table

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import is_locked
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.runs.directory import RunDirectory, find_runs
from pfedlora_flwr.runs.result import best_round


class Listed(TypedDict):
    """A run in the list, and in its JSON."""

    run: str  # its directory, from the folder that was asked for
    state: str  # completed, running, stopped, failed, unfinished or unreadable
    rounds: int  # done
    of: int | None  # null of a run that cannot be read
    keys: dict[
        str, Scalar | None
    ]  # those that can change a result and differ between the runs; null where a run has no such key
    accuracy: (
        float | None
    )  # mean test accuracy at best validation, in [0, 1]; null before it is evaluated


def list_runs(folder: Path) -> list[Listed]:
    """The runs below, by name. Raises UserError when the folder is not there."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no directory")
    found = [(run, _read(run, folder)) for run in find_runs(folder)]
    flats = [listed["keys"] for _, listed in found if listed["of"] is not None]
    names = dict.fromkeys(name for flat in flats for name in flat)
    differ = [name for name in names if len({str(flat.get(name)) for flat in flats}) > 1]
    return [
        {**listed, "keys": {name: listed["keys"].get(name) for name in differ}}
        for _, listed in found
    ]


def table(runs: Sequence[Listed]) -> Table:
    """The list for people: accuracies in percent."""
    keys = list(runs[0]["keys"]) if runs else []
    shown = Table()
    for name in ("run", "state", "rounds", *keys, "accuracy, %"):
        shown.add_column(
            name, justify="right" if name in ("rounds", "accuracy, %") else "left", overflow="fold"
        )
    for run in runs:
        values = ["–" if value is None else str(value) for value in run["keys"].values()]
        accuracy = "–" if run["accuracy"] is None else f"{100 * run['accuracy']:.2f}"
        shown.add_row(
            run["run"], run["state"], f"{run['rounds']}/{run['of'] or '?'}", *values, accuracy
        )
    return shown


def _read(run: RunDirectory, folder: Path) -> Listed:
    name = str(run.path.relative_to(folder)) if run.path != folder else str(folder)
    try:
        e, result, rows = run.experiment(), run.result(), run.rounds()
    except UserError:
        return {
            "run": name,
            "state": "unreadable",
            "rounds": 0,
            "of": None,
            "keys": {},
            "accuracy": None,
        }
    running = any(is_locked(lock) for lock in (run.launch_lock, run.lock_file))
    state = "running" if running else result["status"] if result else "unfinished"
    return {
        "run": name,
        "state": state,
        "rounds": rows[-1]["round"] if rows else 0,
        "of": e.rounds,
        "keys": {key: value for key, value in e.flat().items() if e.keys()[key][0].result},
        "accuracy": best_round(e, rows)["accuracy"] if rows and rows[-1]["evaluated"] else None,
    }
