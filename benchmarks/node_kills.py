"""A Ray node killed in round 2 of 5, run after run: `python -m benchmarks.node_kills [COUNT]`.

Two Ray nodes of this machine. Each run must come to the models of an undisturbed one, by itself or
after one `--resume`, and leave no worker; a new node then joins. Prints a line a run; the exit code
is 1 where one did not."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pfedlora_flwr.runs.directory import RunDirectory
from tests.cluster.nodes import Cluster

_KEYS = ("clients=5", "participation=0.8", "rounds=5", "batch-size=16", "seed=7")
_PATIENCE = 600.0


def main(count: int) -> int:
    """How many of the runs came to other models, or to none, or left workers."""
    wrong = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Cluster() as cluster:
        undisturbed = RunDirectory(Path(folder) / "undisturbed")
        if code := _start(undisturbed, "--engine", "local").wait(_PATIENCE):
            raise SystemExit(f"the undisturbed run ends with {code}")
        for number in range(1, count + 1):
            run = RunDirectory(Path(folder) / f"run{number}")
            process = _start(run, "--ray", cluster.address)
            _wait_for_round(run, process)
            cluster.kill_last()
            killed = time.monotonic()
            code = process.wait(_PATIENCE)
            seconds = time.monotonic() - killed
            cluster.add()
            how = "went on"
            if code:
                how = f"stopped ({_end(run).get('error')}); resumed"
                code = _start(run, "--resume", "--ray", cluster.address).wait(_PATIENCE)
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


def _start(run: RunDirectory, *words: str) -> subprocess.Popen[bytes]:
    options = [word for key in (*_KEYS, f"output={run.path}") for word in ("-o", key)]
    command = [sys.executable, "-m", "pfedlora_flwr.cli", "run", "--quiet", *options, *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


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
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10) > 0)
