"""How a run stands, from its directory: `pfedlora status`, and the line that its server logs for
whoever asks from elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features import records
from pfedlora_flwr.runs.layout import CONFIG, RunFiles
from pfedlora_flwr.runs.lines import seconds_left
from pfedlora_flwr.runs.records import check_told
from pfedlora_flwr.runs.rows import Phase, Status
from pfedlora_flwr.runs.site_names import names_told
from pfedlora_flwr.runs.standing import Standing

State = Literal["running", "killed", "unknown"] | Status
LOST = "its server is gone and left no result; resume=true continues it"
"""What is said of a run that was killed."""


class ClientStatus(TypedDict):
    """A client in `pfedlora status --json`. A visit fails if it has no admitted answer."""

    round: int  # the last round that admitted an update of it; 0 if none did
    # Unix time of that round's end; null if there is none
    seen: float | None
    failures: int  # failed visits
    in_a_row: int  # those of them since its last admitted update
    refused: int  # those of them whose answer came and was refused
    reason: str | None  # of the last failure, in one line; null if there is none
    # the name under which its node is registered; null if it has none, or the run hides its clients
    site: str | None


class NodeStatus(TypedDict):
    """A SuperNode in `pfedlora status --superlink NAME --json`, as Flower knows it."""

    number: int  # Flower's own
    name: str  # under which it is registered; empty without one
    status: str  # online, offline or registered
    since: str  # when that began, in UTC
    key: str  # its key's fingerprint; empty without authentication


class RunStatus(TypedDict):
    """`pfedlora status --json`."""

    run: str  # the run's directory, on its server's host
    # running, completed, failed, diverged or stopped; killed: its server is gone and left no
    # result; unknown: it ran on another host
    state: State
    # why it is not running or completed, in one line; with --superlink the last line of a running
    # one's log
    reason: str | None
    method: str | None  # null if the server has not begun
    # what the server did last, as in Progress; null if it has not begun
    phase: Phase | None
    round: int  # completed rounds
    rounds: int | None  # rounds of the whole run; null if the server has not begun
    done: int  # clients that have answered in the running phase, as in Progress
    of: int  # number of clients that were asked
    accuracy: float | None  # mean test accuracy after the last round; null before any evaluation
    seconds_left: float | None  # by the last five rounds; null before one, and unless it is running
    written: float | None  # Unix time at which the server last said what it does
    host: str | None  # the server's host
    clients: int | None  # number of clients that have not left; null if the server has not begun
    failures: int  # failed visits of all clients
    refused: int  # refused updates of all clients
    # by client that had a visit or failed, and has not left; a server's log has at most 20, those
    # that fail first
    per_client: dict[str, ClientStatus]
    disk_used: int | None  # bytes in the run's directory; null if the server has not begun
    disk_free: int | None  # bytes that are free on its file system; null as above
    run_id: NotRequired[str]  # Flower's, with --superlink
    nodes: NotRequired[list[NodeStatus]]  # with --superlink


def find_status(run: RunFiles) -> RunStatus:
    """How the run in a directory stands. Raises UserError when there is none, and for files that
    cannot be read."""
    state, reason = _state(run)
    if state != "running" and not run.holds_run and not run.result_file.exists():
        raise UserError(f"{run.path} holds no run")
    standing = run.standing().look()
    if state == "completed" and (result := run.result()):
        if not run.holds_run:
            raise UserError(f"{run.path} has no {CONFIG}, as a completed run has; restore it")
        check_told(run.path, standing.so_far.round, result, run.hashes_file)
    return status_of(run, state, reason, standing)


def status_of(run: RunFiles, state: State, reason: str | None, standing: Standing) -> RunStatus:
    """The same where the state is known and its lines have been looked at. Raises UserError when
    its configuration cannot be read."""
    keys = run.saved_keys() if run.holds_run else {}
    doing, so_far, rounds = run.doing() or {}, standing.so_far, keys.get("rounds")
    left = records.members_of(keys).gone_after(so_far.round)
    names = names_told(run)
    clients = {
        str(number): cast(
            ClientStatus,
            {"round": client.round, "seen": standing.seen(number)}
            | asdict(client)
            | {"site": names.get(number)},
        )
        for number, client in sorted(standing.clients.items())
        if number not in left
    }
    return {
        "run": str(run.path),
        "state": state,
        "reason": reason,
        "method": keys.get("method"),
        "phase": doing.get("phase"),
        "round": so_far.round,
        "rounds": rounds,
        "done": doing.get("done", 0),
        "of": doing.get("of", 0),
        "accuracy": so_far.accuracy,
        "seconds_left": _left(standing, rounds) if state == "running" and rounds else None,
        "written": doing.get("time"),
        "host": doing.get("host"),
        "clients": keys["clients"] - len(left) if keys else None,
        "failures": sum(client["failures"] for client in clients.values()),
        "refused": sum(client["refused"] for client in clients.values()),
        "per_client": clients,
        "disk_used": sum(_sizes(run.path)),
        "disk_free": shutil.disk_usage(run.path).free,
    }


def failing_first(status: RunStatus, most: int) -> dict[str, ClientStatus]:
    """At most so many clients, in their order: those that fail for longest, then those that were
    not heard of for longest."""
    by_worst = sorted(
        status["per_client"].items(), key=lambda item: (-item[1]["in_a_row"], item[1]["round"])
    )
    chosen = {number for number, _ in by_worst[:most]}
    return {k: client for k, client in status["per_client"].items() if k in chosen}


def _state(run: RunFiles) -> tuple[State, str | None]:
    try:
        if run.is_held:
            return "running", None
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read ({error.strerror})") from None
    if result := run.result():
        return result["status"], result["error"]
    host = (run.doing() or {}).get("host")
    if host in (None, socket.gethostname()):
        return "killed", LOST
    return "unknown", f"its server ran on {host}, and it left no result; ask there"


def _left(standing: Standing, rounds: int) -> float | None:
    """By the last rounds, less what of the running one is over."""
    so_far = standing.so_far
    left = seconds_left(so_far, rounds)
    if not left:
        return left
    passed = time.time() - standing.ended.get(so_far.round, time.time())
    return left - min(max(0.0, passed), left / (rounds - so_far.round))


def _sizes(folder: Path) -> Iterator[int]:
    """The sizes of all files in a folder and below; what is removed meanwhile is left out."""
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                yield (Path(path) / name).lstat().st_size
