"""Thirty wrong inputs end to end, through `flwr run .` and `pfedlora run` with its default engine: `python -m benchmarks.wrong [WORD]`.

Prints a line a command: its exit code, the lines that it answered with, seconds and what it left running; ends with 1 if one is not as
expected. WORD: only the commands that it is in. This process adopts whatever its descendants leave behind. Linux only.

Of `flwr run` the exit code is Flower's, 0 once the run was taken; its answer is the ServerApp's result line, beside what Flower logs.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psutil

from pfedlora_flwr.launch.flower import QUIET
from pfedlora_flwr.launch.processes import MARKER, free_port, stop_marked
from pfedlora_flwr.runs.result import RESULT_LINE
from tests.wrong_inputs import RUN, TABLE, Wrong, faults, files_in

ROOT = Path(__file__).resolve().parent.parent
_PR_SET_CHILD_SUBREAPER = 36
_TIMEOUT, _PATIENCE = 120.0, 10.0
"""Seconds: for a command, and for Flower to end a run's processes after it."""
IN_THE_RUN = [row for row in TABLE["own code"] if row.code == 1]
BEFORE_IT = [
    next(
        row
        for category in TABLE.values()
        for row in category
        if words in row.expected and row.command.startswith("run")
    )
    for words in (
        "mu is 1.2; allowed",
        "'rounds' is there twice",
        "images is uint8 [100, 32, 32, 3], labels int64 [50]",
        "in forward, at own_models.py",
        "is a file; choose a directory",
        "is in use by a running run",
    )
]
THROUGH_FLWR = {  # run-config → what Flower, or the result, says
    "mu=2": "mu is 2.0; allowed: a number ≥ 0 and ≤ 1",
    "muu=2": "Invalid run configuration",
    'method="fedsgd"': "method is 'fedsgd'; allowed: pfedlora",
    'models="cnn9"': "models names 'cnn9'; allowed: cnn1",
    'partition.kind="pathological" partition.classes-per-client=3': "2 clients × 3 classes a client is not a multiple of the 10 classes",
    "classes=3": "has 10 classes, the Experiment 3; set classes",
    'method="nowhere:Thing"': "module 'nowhere' cannot be imported",
    'method-options="a=b"': "the options of pfedlora are keys",
    'output="here"': "output is 'here'; allowed: an absolute path",
    "resume=true": "holds no run to resume",
    'resume=true output="RUN" rounds=3': "rounds: 2 → 3); resume it as it was; only -o rounds=N (in Flower's run-config",
    'resume=true output="RUN" rounds=1 extend=true': "ends at 2: it can be extended, not shortened",
}


class Table:
    """The lines printed so far, and how many were not as expected."""

    def __init__(self) -> None:
        self.printed = self.wrong = 0

    def add(self, command: str, code: int, lines: int, seconds: float, found: list[str]) -> None:
        self.printed, self.wrong = self.printed + 1, self.wrong + bool(found)
        outcome = "; ".join(found) or "as expected"
        print(
            f"{command[-110:]:110} | exit {code:3} | {lines} lines | {seconds:5.1f} s | {outcome}",
            flush=True,
        )


def main(word: str) -> int:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    table = Table()
    with tempfile.TemporaryDirectory(prefix="pfedlora-") as folder:
        place = Path(folder)
        environment = (
            os.environ
            | QUIET
            | {"PYTHONPATH": str(ROOT), "COLUMNS": "400", "FLWR_HOME": str(place / "flwr")}
        )
        environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        words = [
            sys.executable,
            "-m",
            "pfedlora_flwr.cli",
            "run",
            "--engine",
            "local",
            *shlex.split(RUN),
            "-o",
            f"output={place / 'run'}",
        ]
        subprocess.run(
            words, env=environment, cwd=place, check=True, capture_output=True, timeout=_TIMEOUT
        )
        for number, row in enumerate(
            row for row in [*IN_THE_RUN, *BEFORE_IT] if word in row.command
        ):
            (place / str(number)).mkdir()
            _pfedlora(row, place / str(number), environment, table)
        chosen = {
            config: said
            for config, said in THROUGH_FLWR.items()
            if word in f"flwr run . -c {config}"
        }
        if chosen:
            _flwr(chosen, place, environment, table)
    print(f"{table.printed - table.wrong} of {table.printed} as expected")
    return bool(table.wrong)


def _pfedlora(row: Wrong, folder: Path, environment: dict[str, str], table: Table) -> None:
    """One row of the table of wrong inputs, by the engine flower."""
    os.chdir(folder)
    command = row.command.replace("--engine local ", "")
    with ExitStack() as held:
        if row.run:
            subprocess.run(["cp", "-r", str(folder.parent / "run"), "run"], check=True)
        for make in row.needs:
            holds = make(folder)
            if holds is not None:
                held.enter_context(holds)  # type: ignore[arg-type]
        before, began = files_in(folder), time.monotonic()
        words = [sys.executable, "-m", "pfedlora_flwr.cli", *shlex.split(command)]
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
        seconds = time.monotonic() - began
    found = faults(row, done.returncode, done.stdout, done.stderr, before, files_in(folder))
    time.sleep(1)
    table.add(
        f"pfedlora {command}",
        done.returncode,
        len(done.stderr.splitlines()),
        seconds,
        found + _left(Counter()),
    )


def _flwr(configs: dict[str, str], place: Path, environment: dict[str, str], table: Table) -> None:
    """Run-configs through `flwr run .`, all of them on the one local SuperLink that Flower starts with the first and leaves running."""
    environment |= {
        MARKER: f"wrong-{os.getpid()}",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
    }
    try:
        subprocess.run(
            ["flwr", "list"],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
        )
        time.sleep(_PATIENCE / 2)
        resident = Counter(map(_name, _children()))
        for number, (config, expected) in enumerate(configs.items()):
            filled = config.replace("RUN", str(place / "run"))
            output = "" if "output" in config else f' output="{place / f"flwr-{number}"}"'
            federation = "num-supernodes=2 client-resources-num-cpus=1"
            keys = 'partition.kind="iid" dataset="synthetic:100" models="tests.methods.narrow:Narrow" clients=2 rounds=2'
            own = " ".join(
                pair for pair in keys.split() if f" {pair.split('=')[0]}=" not in f" {config}"
            )
            command = [
                "flwr",
                "run",
                ".",
                "--federation-config",
                federation,
                "--stream",
                "-c",
                f"{own} {filled}{output}".strip(),
            ]
            began = time.monotonic()
            done = subprocess.run(
                command,
                env=environment,
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
            seconds = time.monotonic() - began
            results = [line for line in done.stdout.splitlines() if line.startswith(RESULT_LINE)]
            told = [json.loads(line.removeprefix(RESULT_LINE))["result"] for line in results]
            said = told[0]["error"] or "" if told else done.stdout + done.stderr
            found = [] if expected in said else [f"not said: {expected}, but {said[-200:]}"]
            found += [
                f"status {result['status']}"
                for result in told
                if result["status"] != "failed" or "\n" in (result["error"] or "")
            ]
            until = time.monotonic() + _PATIENCE
            while _left(resident) and time.monotonic() < until:
                time.sleep(0.2)
            table.add(
                f"flwr run . -c '{config}'",
                done.returncode,
                len(results) or 1,
                seconds,
                found + _left(resident),
            )
    finally:
        stop_marked(environment[MARKER])
    left = _left(Counter())
    table.wrong += bool(left)
    print("; ".join(left) or "left running after the SuperLink was stopped: nothing")


def _children() -> list[psutil.Process]:
    return [
        p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE
    ]


def _left(resident: Counter[str]) -> list[str]:
    """The processes that run, but for those that were there before."""
    return [f"left running: {name}" for name in (Counter(map(_name, _children())) - resident)]


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(Path(word).name for word in process.cmdline()[:3]) or process.name()
    except psutil.Error:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
