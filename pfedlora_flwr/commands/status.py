"""`pfedlora status`: how a run stands, from its directory or from its SuperLink."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features.rules import PHASES
from pfedlora_flwr.ops.progress_text import duration, megabytes
from pfedlora_flwr.runs.layout import RunFiles
from pfedlora_flwr.runs.status import (
    ClientStatus,
    NodeStatus,
    RunStatus,
    State,
    failing_first,
    find_status,
)

CODES: dict[State, int] = {
    "completed": 0,
    "failed": 1,
    "diverged": 1,
    "running": 3,
    "killed": 4,
    "stopped": 5,
    "unknown": 6,
}
"""Exit codes; a user's mistake has 2."""
_LISTED = 20
"""Clients that the table lists."""


def show_status(place: str | None, superlink: str | None, out: Console, *, as_json: bool) -> int:
    """Prints how the run in the directory `place` stands, or on a SuperLink Flower's run of that
    number, or the last; the exit code. Raises UserError if there is none that can be asked."""
    if superlink is not None:
        from pfedlora_flwr.launch.remote import remote_status

        return show(remote_status(superlink, place), out, as_json=as_json)
    if place is None:
        raise UserError("status needs RUN, a run's directory, or superlink=CONNECTION")
    path = Path(place)
    if path.is_file():
        raise UserError(f"{path} is a file; allowed: a run's directory")
    return show(find_status(RunFiles(path.absolute())), out, as_json=as_json)


def show(status: RunStatus, out: Console, *, as_json: bool) -> int:
    """Prints the status; the exit code."""
    if as_json:
        print(json.dumps(status, indent=1))
    else:
        for line in lines(status, time.time()):
            out.print(line, soft_wrap=True)
        if status["per_client"]:
            out.print(_table(status, time.time()))
        if nodes := status.get("nodes"):
            out.print(_nodes(nodes))
    return CODES[status["state"]]


def lines(status: RunStatus, now: float) -> list[str]:
    """The status in words, without the clients."""
    flower = f" (Flower's run {status['run_id']})" if "run_id" in status else ""
    found = [f"{status['run']}{flower}: {status['state']}"]
    found += [status["reason"]] if status["reason"] else []
    doing = _doing(status)
    if status["written"] is not None:
        doing = f"{doing}; written {_ago(status['written'], now)} on {status['host'] or 'its host'}"
    found.append(doing)
    figures = []
    if status["seconds_left"] is not None:
        figures.append(f"about {duration(status['seconds_left'])} left")
    if status["accuracy"] is not None:
        figures.append(f"accuracy {status['accuracy']:.4f}")
    figures += [f"{status['failures']} failures", f"{status['refused']} refused updates"]
    if (used := status["disk_used"]) is not None and (free := status["disk_free"]) is not None:
        figures.append(f"disk: {megabytes(used)} used, {free / 1e9:.1f} GB free")
    return [*found, " · ".join(figures)]


def _doing(status: RunStatus) -> str:
    if status["rounds"] is None:
        return "the server has not begun"
    over = f"{status['round']} of {status['rounds']} rounds are over"
    if status["state"] != "running":
        return over
    answered = f"{status['done']} of {status['of']} clients"
    doing = {"training": "training", "evaluating": "evaluating"} | PHASES
    if (phase := status["phase"] or "") in doing:
        return f"{over}; {doing[phase]}: {answered} have answered"
    return f"{over}; {answered} are there" if phase == "connecting" else over


def _table(status: RunStatus, now: float) -> Table:
    """A line a client, at most 20: those that fail."""
    shown = Table(box=box.SIMPLE_HEAD)
    named = any(client.get("site") for client in status["per_client"].values())
    if named:
        shown.add_column("site", overflow="fold")
    for name in ("client", "last update", "failures", "in a row", "refused"):
        shown.add_column(name, justify="left" if name == "last update" else "right", no_wrap=True)
    shown.add_column("last failure", overflow="fold")
    for number, client in failing_first(status, _LISTED).items():
        shown.add_row(
            *([Text(client.get("site") or "")] if named else []),
            number,
            _update(client, now),
            str(client["failures"]),
            str(client["in_a_row"]),
            str(client["refused"]),
            Text(client["reason"] or ""),
        )
    if len(status["per_client"]) > _LISTED:
        more = f"{len(status['per_client']) - _LISTED} more: --json"
        shown.add_row(*([""] if named else []), "…", more)
    return shown


def _update(client: ClientStatus, now: float) -> str:
    if not client["round"]:
        return "none"
    ago = f", {_ago(client['seen'], now)}" if client["seen"] is not None else ""
    return f"round {client['round']}{ago}"


def _nodes(nodes: list[NodeStatus]) -> Table:
    shown = Table("node", "name", "status", "since", "key", box=box.SIMPLE_HEAD)
    for node in nodes:
        of = str(node["number"]), Text(node["name"])
        shown.add_row(*of, node["status"], node["since"], node["key"])
    return shown


def _ago(then: float, now: float) -> str:
    return f"{duration(max(0.0, now - then))} ago"
