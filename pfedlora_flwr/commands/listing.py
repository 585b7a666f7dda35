"""`pfedlora list`: the runs in a folder and below, their progress, and the keys in which they
differ. It imports no user code, so the list is the same from every folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pfedlora_flwr.commands.console import flags
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import KEYS as NO_RESULT
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features import records
from pfedlora_flwr.files import check_folder
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.runs.data_name import data_name
from pfedlora_flwr.runs.directory import RunDirectory, find_runs
from pfedlora_flwr.runs.layout import Row
from pfedlora_flwr.runs.result import best_round
from pfedlora_flwr.runs.rows import accuracy_of


class Listed(TypedDict):
    """`pfedlora list --json` has one for each run."""

    run: str  # its directory, from the folder that was asked for
    state: str  # completed, running, stopped, failed, diverged, unfinished or unreadable
    rounds: int  # done
    of: int | None  # null of a run that cannot be read
    # those that can change a result and differ between the runs; null where a run has no such key
    keys: dict[str, Scalar | None]
    # mean test accuracy at best validation, in [0, 1]; null before it is evaluated
    accuracy: float | None
    # why it was stopped, failed, diverged or cannot be read; otherwise null
    reason: str | None


def show(folder: Path, out: Console, *, as_json: bool) -> None:
    """Prints the list. Raises UserError when the folder is not there."""
    runs = list_runs(folder)
    if as_json:
        print(json.dumps(runs, indent=1))
    else:
        out.print(table(runs) if runs else f"no run in {folder}")


def list_runs(folder: Path) -> list[Listed]:
    """The runs below, by name. Raises UserError when the folder is not there."""
    check_folder(folder)
    found = [_read(run, folder) for run in find_runs(folder)]
    flats = [listed["keys"] for listed in found if listed["of"] is not None]
    names = dict.fromkeys(name for flat in flats for name in flat)
    differ = [name for name in names if len({str(flat.get(name)) for flat in flats}) > 1]
    return [
        {**listed, "keys": {name: listed["keys"].get(name) for name in differ}} for listed in found
    ]


def table(runs: Sequence[Listed]) -> Table:
    """The list for people, as wide as the terminal: accuracies in percent, and the keys that differ
    in one column, in words."""
    shown = Table(box=box.SIMPLE_HEAD)
    shown.add_column("run", overflow="fold")
    shown.add_column("state", no_wrap=True)
    shown.add_column("rounds", justify="right", no_wrap=True)
    shown.add_column("acc. %", justify="right", no_wrap=True)
    shown.add_column("keys that differ", overflow="fold")
    # another method's options are not told where the methods tell them
    values = {
        n: {str(run["keys"].get(n)) for run in runs} for n in (runs[0]["keys"] if runs else ())
    }
    names = [name for name, found in values.items() if len(found - {"None"}) > 1]
    for run in runs:
        keys = {name: run["keys"].get(name) for name in names}
        words = [f"{name}={value}" for name, value in keys.items() if value is not None]
        shown.add_row(
            Text(run["run"]),
            run["state"],
            f"{run['rounds']}/{run['of'] or '?'}",
            "–" if run["accuracy"] is None else f"{100 * run['accuracy']:.2f}",
            Text("\n".join(filter(None, [" ".join(words), flags(run["reason"] or "")]))),
        )
    return shown


def _read(run: RunDirectory, folder: Path) -> Listed:
    name = str(run.path.relative_to(folder)) if run.path != folder else str(folder)
    try:
        return _readable(run, name)
    except UserError as error:
        return {
            "run": name,
            "state": "unreadable",
            "rounds": 0,
            "of": None,
            "keys": {},
            "accuracy": None,
            "reason": str(error).removeprefix(f"{run.path}/"),
        }


def _readable(run: RunDirectory, name: str) -> Listed:
    """Raises UserError for a run whose files cannot be read."""
    saved, result, rows = run.saved_keys(), run.result(), run.rounds()
    e, score = _evaluated(saved, run), saved.get("verdict.score", "accuracy")
    running = run.is_held
    keys = {key: value for key, value in saved.items() if key not in NO_RESULT}
    return {
        "run": name,
        "state": "running" if running else result["status"] if result else "unfinished",
        "rounds": rows[-1]["round"] if rows else 0,
        "of": e.rounds,
        "keys": keys | {"dataset": data_name(run, e)},
        "accuracy": accuracy_of(best_round(e, rows, str(score))) if rows else None,
        "reason": result["error"] if result and not running else None,
    }


def _evaluated(saved: Row, run: RunDirectory) -> Experiment:
    """As much of the Experiment as says which rounds were evaluated. Raises UserError if the
    configuration does not tell."""
    try:
        return Experiment(
            dataset=str(saved["dataset"]),
            rounds=int(saved["rounds"]),
            evaluate_every=int(saved["evaluate-every"]),
            members=records.members_of(saved),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{run.config} cannot be read as a run's configuration ({error})") from None
