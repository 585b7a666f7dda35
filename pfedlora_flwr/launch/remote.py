"""How a run on a SuperLink stands, for whoever can reach the SuperLink and not the run's directory:
by what Flower says of it, by the lines that its server logs, and by the SuperLink's nodes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any, cast

from pfedlora_flwr.errors import UserError, as_line
from pfedlora_flwr.launch.flower import APP, FlwrCommand, LaunchError, environment
from pfedlora_flwr.launch.superlink import find_connection, nodes_of, why_unreachable
from pfedlora_flwr.runs.result import FOR_PROGRAMS, LINE, STATUS_LINE, result_in
from pfedlora_flwr.runs.status import LOST, NodeStatus, RunStatus, State


def remote_status(superlink: str, run_id: str | None) -> RunStatus:
    """A run as the SuperLink knows it: this one of Flower's, or the last of this app. Raises
    UserError when the SuperLink cannot be asked, or has no such run.

    What the server last said is of the end of a round; of a running round nothing is known."""
    connection = find_connection(superlink)
    with tempfile.TemporaryDirectory(prefix="pfedlora-") as folder:
        flwr = FlwrCommand(superlink, environment(), Path(folder) / "flwr.log")
        try:
            run = _find(flwr.runs(), run_id, superlink)
            said = [line for line in flwr.log(run["run-id"]).splitlines() if line.startswith(LINE)]
        except LaunchError as failure:
            # Flower's own log goes with the folder
            told = str(failure).partition(f" (see {folder}")[0]
            raise UserError(why_unreachable(connection) or told) from None
    status = _last(said)
    status["state"], status["reason"] = _state(str(run["status"]), said)
    status["run_id"] = str(run["run-id"])
    if status["state"] != "running":
        status["seconds_left"] = None
    status["nodes"] = [cast(NodeStatus, dataclasses.asdict(n)) for n in nodes_of(connection)]
    return status


def _find(runs: list[dict[str, Any]], run_id: str | None, superlink: str) -> dict[str, Any]:
    ours = [run for run in runs if run.get("fab-name") == APP]
    chosen = [run for run in runs if run["run-id"] == run_id] if run_id is not None else ours
    if not chosen:
        wanted = f"run {run_id}" if run_id is not None else f"run of {APP}"
        there = ", ".join(f"{run['run-id']} ({run.get('fab-name')})" for run in runs) or "none"
        raise UserError(f"the SuperLink {superlink!r} knows no {wanted}; it has: {there}")
    return max(chosen, key=lambda run: str(run.get("pending-at", "")))


def _last(said: list[str]) -> RunStatus:
    """What the server said last of itself, except for damaged lines; of one that has not begun,
    nothing."""
    there = [name for name in RunStatus.__annotations__ if name not in ("run_id", "nodes")]
    counts: dict[str, Any] = dict.fromkeys(("round", "done", "of", "failures", "refused"), 0)
    known = counts | {"run": "a run", "state": "running", "per_client": {}}
    nothing = cast(RunStatus, dict.fromkeys(there) | known)
    for line in reversed(said):
        if line.startswith(STATUS_LINE):
            with contextlib.suppress(ValueError):
                found = json.loads(line.removeprefix(STATUS_LINE))
                if isinstance(found, dict):
                    return cast(RunStatus, {**nothing, **found})
    return nothing


def _state(flower: str, said: list[str]) -> tuple[State, str | None]:
    """Of a run that is over for Flower by the result that the server printed at its end, if there
    is one; else by what Flower says, and the server's last line."""
    if flower.startswith("finished") and (told := result_in(said)):
        return told["result"]["status"], told["result"]["error"]
    if flower == "finished:stopped":
        return "stopped", "stopped through Flower"
    if flower == "finished:completed" and not said:  # another app
        return "completed", None
    if flower.startswith("finished"):
        return "killed", LOST
    words = [line.removeprefix(LINE) for line in said if not line.startswith(FOR_PROGRAMS)]
    return "running", as_line(words[-1]) if words else f"Flower says {flower}"
