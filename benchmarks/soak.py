"""Runs in a row that are ended from outside, and what each leaves: `python -m benchmarks.soak
processes|nodes [COUNT]`.

processes: runs by turns completed, stopped and failed, and what outlives each by a second. This
process adopts whatever its descendants leave behind, so nothing can hide by giving up its
environment or its session. Linux only.

nodes: two Ray nodes of this machine, one of which is killed in round 2 of 5. Each run must come to
the models of an undisturbed one, by itself or after one `--resume`, and leave no worker; a new node
then joins.

Prints a line a run. The exit code is 1 where a run left something or did not end as it should."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from pfedlora_flwr.runs.directory import RunDirectory
from tests.cluster.nodes import Cluster

_PR_SET_CHILD_SUBREAPER = 36
_SMALL = ("clients=2", "partition.kind=iid", "dataset=synthetic:100")
_LONGER = ("clients=5", "participation=0.8", "rounds=5", "batch-size=16", "seed=7")
_PATIENCE = 600.0


@dataclass(frozen=True)
class Turn:
    """A key of the run, the exit code it ends with, and the server's phase and round in which it is
    stopped, if it is."""

    name: str
    key: str
    code: int
    phase: str = ""
    round: int = 0


TURNS = (
    Turn("completed", "rounds=2", 0),
    Turn("stopped in round 3", "rounds=1000", 75, "training", 3),
    Turn("failed", "node-timeout=0.01", 1),
    Turn("stopped while Ray starts", "rounds=1000", 75, "connecting"),
)


def processes(count: int) -> int:
    """How many runs left a process behind or did not end as they should."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process cannot adopt orphans")
    wrong = 0
    for number in range(count):
        turn = TURNS[number % len(TURNS)]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            run = RunDirectory(Path(folder) / "run")
            began = time.monotonic()
            process = _start(run, (*_SMALL, turn.key))
            if turn.phase:
                _stop(process, run, turn)
            code = process.wait()
            seconds = time.monotonic() - began
            time.sleep(1)
            orphans = _running_children()
            names = ", ".join(orphans.values()) or "nothing"
            print(
                f"run {number + 1}: {turn.name}, exit code {code}, {seconds:.1f} s; left running:"
                f" {names}",
                flush=True,
            )
            for orphan in orphans:
                with contextlib.suppress(psutil.Error):
                    orphan.kill()
        wrong += bool(orphans) or code != turn.code
    return wrong


def nodes(count: int) -> int:
    """How many runs came to other models, or to none, or left workers."""
    wrong = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Cluster() as cluster:
        undisturbed = RunDirectory(Path(folder) / "undisturbed")
        if code := _start(undisturbed, _LONGER, "--engine", "local").wait(_PATIENCE):
            raise SystemExit(f"the undisturbed run ends with {code}")
        for number in range(1, count + 1):
            run = RunDirectory(Path(folder) / f"run{number}")
            process = _start(run, _LONGER, "--ray", cluster.address)
            _wait_for_round(run, process)
            cluster.kill_last()
            killed = time.monotonic()
            code = process.wait(_PATIENCE)
            seconds = time.monotonic() - killed
            cluster.add()
            how = "went on"
            if code:
                how = f"stopped ({_end(run).get('error')}); resumed"
                code = _start(run, _LONGER, "--resume", "--ray", cluster.address).wait(_PATIENCE)
            equal = _models(run) == _models(undisturbed)
            left = len(cluster.left())
            wrong += bool(code) or not equal or bool(left)
            models = "equal" if equal else "DIFFERENT"
            print(
                f"run {number}: {how}, ended {seconds:.0f} s after the kill; models {models};"
                f" workers left: {left}",
                flush=True,
            )
    return wrong


SOAKS = {"processes": processes, "nodes": nodes}


def main() -> int:
    name, *count = sys.argv[1:] or [""]
    if name not in SOAKS:
        raise SystemExit(f"the first argument is {name!r}; allowed: {', '.join(SOAKS)}")
    return int(SOAKS[name](int(count[0]) if count else len(TURNS)) > 0)


def _start(run: RunDirectory, keys: Sequence[str], *words: str) -> subprocess.Popen[bytes]:
    options = [word for key in (*keys, f"output={run.path}") for word in ("-o", key)]
    command = [sys.executable, "-m", "pfedlora_flwr.cli", "run", "--quiet", *options, *words]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _stop(process: subprocess.Popen[bytes], run: RunDirectory, turn: Turn) -> None:
    """Stops a run when it is where its turn says."""
    while process.poll() is None:
        doing = run.doing() or {}
        if doing.get("phase") == turn.phase and doing.get("round", 0) >= turn.round:
            # taken like Ctrl-C, also where a shell has us ignore that
            process.send_signal(signal.SIGTERM)
            return
        time.sleep(0.05)


def _running_children() -> dict[psutil.Process, str]:
    """What descends from this process and runs, by name. (One that has ended stays as a zombie,
    since nobody waits for it.)"""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found[process] = " ".join(process.cmdline()[:3]) or process.name()
    return found


def _wait_for_round(run: RunDirectory, process: subprocess.Popen[bytes]) -> None:
    """Until round 1 is done, and round 2 goes on."""
    deadline = time.monotonic() + _PATIENCE
    while not any(row["round"] == 1 for row in (run.rounds() if run.holds_run else [])):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{run.path}: no round 1; exit code {process.poll()}")
        time.sleep(0.05)


def _models(run: RunDirectory) -> list[object]:
    return [_end(run).get(name) for name in ("shared_sha256", "models_sha256")]


def _end(run: RunDirectory) -> dict[str, object]:
    return dict(run.result() or {})


if __name__ == "__main__":
    sys.exit(main())
