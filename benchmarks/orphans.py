"""Runs in a row, completed, stopped and failed by turns, and what outlives each by a second:
`python -m benchmarks.orphans [COUNT]`.

This process adopts whatever its descendants leave behind, so nothing can hide by giving up its
environment or its session. Linux only. The exit code is 1 when a process was left, or a run did not
end as its turn says."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from pfedlora_flwr.runs.directory import RunDirectory

_PR_SET_CHILD_SUBREAPER = 36
_KEYS = ("-o", "clients=2", "-o", "partition.kind=iid", "-o", "dataset=synthetic:100")


@dataclass(frozen=True)
class Kind:
    """A turn: a key of the run, the exit code it ends with, and the server's phase and round in
    which it is stopped, if it is."""

    name: str
    key: str
    code: int
    phase: str = ""
    round: int = 0


KINDS = (
    Kind("completed", "rounds=2", 0),
    Kind("stopped in round 3", "rounds=1000", 75, "training", 3),
    Kind("failed", "node-timeout=0.01", 1),
    Kind("stopped while Ray starts", "rounds=1000", 75, "connecting"),
)


def main(count: int) -> int:
    """Prints a line a run; how many left a process behind or did not end as they should."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process cannot adopt orphans")
    wrong = 0
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            code, seconds = _run(Path(folder) / "run", kind)
            time.sleep(1)
            orphans = _running_children()
            names = ", ".join(orphans.values()) or "nothing"
            print(
                f"run {number + 1}: {kind.name}, exit code {code}, {seconds:.1f} s; left running:"
                f" {names}",
                flush=True,
            )
            for orphan in orphans:
                with contextlib.suppress(psutil.Error):
                    orphan.kill()
        wrong += bool(orphans) or code != kind.code
    return wrong


def _run(output: Path, kind: Kind) -> tuple[int, float]:
    """The exit code and seconds of one run."""
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "pfedlora_flwr.cli",
        "run",
        "--quiet",
        "-o",
        f"output={output}",
        *_KEYS,
        "-o",
        kind.key,
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while kind.phase and process.poll() is None:
        doing = RunDirectory(output).doing() or {}
        if doing.get("phase") == kind.phase and doing.get("round", 0) >= kind.round:
            # taken like Ctrl-C, also where a shell has us ignore that
            process.send_signal(signal.SIGTERM)
            break
        time.sleep(0.05)
    return process.wait(), time.monotonic() - began


def _running_children() -> dict[psutil.Process, str]:
    """What descends from this process and runs, by name. (One that has ended stays as a zombie,
    since nobody waits for it.)"""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found[process] = " ".join(process.cmdline()[:3]) or process.name()
    return found


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]) if len(sys.argv) > 1 else len(KINDS)) else 0)
