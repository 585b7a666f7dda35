"""Processes that carry out runs, for callers that do several at once.

A worker imports what runs need once, and then does one run after the other, each in a fork of
itself: a run finds nothing in memory that another has left, and its worker outlives it. A worker
ends with its parent, and with it the run.

What it is told comes in lines on its standard input: a run, or a signal for the run that goes on.
The end of that input is the parent's. It answers with the exit code of each run."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from pfedlora_flwr.config import run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.launch import processes
from pfedlora_flwr.launch.execute import execute
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.rows import Result
from pfedlora_flwr.training.device import GPU_SHARE, memory_share

_PATIENCE = 20.0
"""Seconds that a run has to stop whose worker has died."""


@dataclass(frozen=True)
class Share:
    """What one of several runs has of the machine. cores: none: all. gpus: as CUDA_VISIBLE_DEVICES
    names them; none: what we see.
    memory: the part of theirs that it may take."""

    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    memory: float = 1.0


def shares(count: int) -> list[Share]:
    """The machine divided for `count` runs at once: each core has one owner, and each GPU, unless
    there are fewer."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        gpus = [str(i) for i in range(torch.cuda.device_count())]
    else:
        gpus = [name for name in visible.split(",") if name]

    def share(i: int) -> Share:
        own = tuple(cores[i::count]) if len(cores) >= count else ()
        if not gpus:
            return Share(own)
        first = i % len(gpus)
        sharing = len(range(first, count, len(gpus)))
        return Share(own, tuple(gpus[first::count]), memory_share() / sharing)

    return [share(i) for i in range(count)]


def could_not_start(reason: str) -> Result:
    """The result of a run that left none."""
    return {"status": "failed", "error": reason}


class Worker:
    """A process with its share of the machine, for one run at a time."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        command, environment = processes.ours(__name__)
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(share.gpus), GPU_SHARE: str(share.memory)}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment | (gpus if share.gpus else {}),
            preexec_fn=(lambda: os.sched_setaffinity(0, share.cores)) if share.cores else None,
            start_new_session=True,  # Ctrl-C is for the parent, which says it on
        )
        self._run: RunDirectory | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be given a run."""
        return self._process.poll() is None

    def start(self, config: RunConfig, engine: str) -> None:
        """Gives it a run, new or resumed."""
        self._run = RunDirectory(Path(config.execution.output))
        self._errors.seek(0)
        self._errors.truncate()
        self._tell({"engine": engine, "config": config.flat()})

    @property
    def ended(self) -> bool:
        """Whether its run has ended, or it has itself."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def stop(self, number: signal.Signals) -> None:
        """Sends its run a signal."""
        self._tell({"signal": number})

    def result(self) -> Result:
        """Waits for the end of its run; what came of it, also where it could not start, or where
        the worker has died."""
        assert self._run is not None
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            self._stop_orphans()
        code = int(answer) if answer else self._process.returncode
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        if answer and code == 0 and (found := self._run.result()):
            return found
        process = "its process" if answer else "the worker that carried it out"
        return could_not_start(
            said[-1] if said and code > 0 else f"{process} ended with exit code {code}"
        )

    def close(self) -> None:
        """Ends it, and waits for that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _tell(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, which `ended` says
            self._process.stdin.write((json.dumps(line) + "\n").encode())
            self._process.stdin.flush()

    def _stop_orphans(self) -> None:
        """Ends what a worker that died has left running: the processes of its group."""
        deadline = time.monotonic() + _PATIENCE
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
            while time.monotonic() < deadline:
                time.sleep(0.05)
                os.killpg(self.pid, 0)
            os.killpg(self.pid, signal.SIGKILL)


def main() -> None:
    """The worker's side."""
    run_config({})  # imports all methods
    lines = open(0, "rb", buffering=0)  # noqa: SIM115 - a fork reads on where this has stopped
    while (line := lines.readline()).endswith(b"\n"):
        told = json.loads(line)
        if "config" not in told:  # a signal for a run that has ended since
            continue
        if told["engine"] == "local":
            import pfedlora_flwr.launch.local  # noqa: F401 - Flower, which each run would import
        gc.freeze()  # or each fork would at its end look through all imports, for a second
        if not (pid := os.fork()):
            _carry_out(told)
            return
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _carry_out(told: dict[str, Any]) -> None:
    """A run, in a process of its own. A user's mistake is a line on standard error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # the worker's end of the pipe is its alone
    os.close(nowhere)
    Thread(target=_listen, daemon=True).start()
    try:
        execute(run_config(told["config"]), lambda *_: None, lambda _: None, engine=told["engine"])
    except UserError as error:
        sys.exit(str(error))


def _listen() -> None:
    """Sends this process the signal that it is told, and SIGTERM when the parent is gone."""
    with open(0, "rb", buffering=0, closefd=False) as lines:
        line = lines.readline()
    os.kill(os.getpid(), json.loads(line)["signal"] if line else signal.SIGTERM)


if __name__ == "__main__":
    main()
