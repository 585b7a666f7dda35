"""A run in a process of its own, for callers that do several at once. It stops by itself if its
parent is gone.

The parent writes to its standard input what shall be run, and leaves that open: its end is the
parent's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import torch
from rich.console import Console

from pfedlora_flwr.config import run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.launch import processes
from pfedlora_flwr.launch.execute import execute
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.rows import Result
from pfedlora_flwr.training.device import GPU_SHARE, memory_share


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
    gpus = (
        [str(i) for i in range(torch.cuda.device_count())]
        if visible is None
        else [name for name in visible.split(",") if name]
    )

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


class Child:
    """One run, started or resumed, with its share of the machine."""

    def __init__(self, config: RunConfig, engine: str, share: Share) -> None:
        self._run = RunDirectory(Path(config.execution.output))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `result`
        command, environment = processes.ours(__name__)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=environment
            | (
                {"CUDA_VISIBLE_DEVICES": ",".join(share.gpus), GPU_SHARE: str(share.memory)}
                if share.gpus
                else {}
            ),
            preexec_fn=(lambda: os.sched_setaffinity(0, share.cores)) if share.cores else None,
            start_new_session=True,  # Ctrl-C is for the parent, which says it on
        )
        assert self._process.stdin is not None
        self._process.stdin.write(
            (json.dumps({"engine": engine, "config": config.flat()}) + "\n").encode()
        )
        self._process.stdin.flush()

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self._process.poll() is not None

    def stop(self, number: signal.Signals) -> None:
        """Asks it to stop."""
        self._process.send_signal(number)

    def result(self) -> Result:
        """Waits for the end; what came of the run, also of one that could not start."""
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        self._errors.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        found = self._run.result() if self._process.returncode == 0 else None
        return found or could_not_start(
            said[-1] if said else f"its process ended with exit code {self._process.returncode}"
        )


def main() -> None:
    """The child's side: the run that standard input names. A user's mistake is a line on standard
    error."""
    told = json.loads(sys.stdin.buffer.readline())
    Thread(target=_stop_with_parent, daemon=True).start()
    try:
        execute(
            run_config(told["config"]),
            lambda *_: None,
            Console(quiet=True),
            engine=told["engine"],
        )
    except UserError as error:
        sys.exit(str(error))


def _stop_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
