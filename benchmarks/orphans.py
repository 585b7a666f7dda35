"""Runs in a row, completed, stopped and failed by turns, and what outlives each by a second: `python -m benchmarks.orphans [COUNT]`.

This process adopts whatever its descendants leave behind, so nothing can hide by giving up its environment or its session. Linux only.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from pfedlora_flwr.runs.directory import RunDirectory

_PR_SET_CHILD_SUBREAPER = 36
_KEYS = ("-o", "clients=2", "-o", "partition.kind=iid", "-o", "dataset=synthetic:100")
_KINDS = {"completed": "rounds=2", "stopped": "rounds=1000", "failed": "node-timeout=0.01"}


def main(count: int) -> int:
    """Prints a line a run; the number of processes that were left."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    left = 0
    for number in range(count):
        kind = list(_KINDS)[number % len(_KINDS)]
        with tempfile.TemporaryDirectory() as folder:
            code, seconds = _run(Path(folder) / "run", kind)
        time.sleep(1)
        orphans = [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
        left += len(orphans)
        names = ", ".join(p.name() for p in orphans) or "nothing"
        print(f"run {number + 1}: {kind}, exit code {code}, {seconds:.1f} s; left running: {names}", flush=True)
        for orphan in orphans:
            orphan.kill()
    return left


def _run(output: Path, kind: str) -> tuple[int, float]:
    """The exit code and seconds of one run; `stopped` is stopped in its third round."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pfedlora_flwr.cli", "run", "--quiet", "-o", f"output={output}", *_KEYS, "-o", _KINDS[kind]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while kind == "stopped" and process.poll() is None and len(RunDirectory(output).rounds()) < 3:
        time.sleep(0.1)
    if kind == "stopped":
        process.send_signal(signal.SIGTERM)  # taken like Ctrl-C, also where a shell has us ignore that
    return process.wait(), time.monotonic() - began


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]) if len(sys.argv) > 1 else 6) else 0)
