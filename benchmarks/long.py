"""A long run of trivial work: what a round costs the launcher and the server must not grow with the
rounds before it.

    python benchmarks/long.py [--rounds 1000,5000,10000] [--engine local] [--folder DIR]

pFedLoRA, two clients with 8 training images each and a linear model, evaluated in the first and the
last round. Prints, when so many rounds are done, the CPU seconds and the resident MiB of launcher,
server and one actor (by the local engine all of them are one process), of SuperLink, GCS and raylet
apart; then seconds and peak memory of `pfedlora report` on the run, and one JSON line."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from pfedlora_flwr.launch.processes import marked
from pfedlora_flwr.runs.directory import RunDirectory

HERE = Path(__file__).resolve().parent
ROLES = {"ray::": "actor", "raylet": "raylet", "gcs_server": "gcs", "superlink": "superlink"}
"""What a process's command line begins with or names → its role."""
PFEDLORA = [sys.executable, "-m", "pfedlora_flwr.cli"]


class Tiny(torch.nn.Module):
    """The least that is a client's model."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten())
        self.head = torch.nn.Linear(48, classes)


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--rounds", default="1000,5000,10000")
    cli.add_argument("--engine", default="local")
    cli.add_argument(
        "--folder", help="where the run is written; its disk is synced several times a round"
    )
    a = cli.parse_args()
    marks = sorted(map(int, a.rounds.split(",")))
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        rows = measure(Path(folder) / "run", a.engine, marks)
        report = reported(Path(folder) / "run")
    print(f"report: {report['seconds']} s, {report['cpu']} CPU s, {report['peak_mib']} MiB at most")
    print(json.dumps({"arguments": vars(a), "rows": rows, "report": report}))


def measure(output: Path, engine: str, marks: list[int]) -> list[dict[str, Any]]:
    """A row when the first and each of `marks` rounds are done, and one with the highest memory of
    all, ends included."""
    keys = {
        "clients": 2,
        "partition.kind": "iid",
        "dataset": "synthetic:20",
        "models": "long:Tiny",
        "device": "cpu",
        "output": output,
    }
    keys |= {
        "rounds": marks[-1],
        "evaluate-every": marks[-1],
        "method": "pfedlora",
        "adapter.hidden-dim": 4,
    }
    words = [word for key, value in keys.items() for word in ("-o", f"{key}={value}")]
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [*PFEDLORA, "run", "--engine", engine, *words]
    with subprocess.Popen(
        command, cwd=HERE, env=environment, stdout=subprocess.DEVNULL
    ) as launcher:
        try:
            rows = watch(launcher, RunDirectory(output), [1, *marks])
        finally:
            launcher.terminate()  # where this is interrupted; it then stops what it has started
    if launcher.returncode:
        raise SystemExit(f"the run failed: {RunDirectory(output).result()}")
    return rows


def watch(
    launcher: subprocess.Popen[bytes], run: RunDirectory, marks: list[int]
) -> list[dict[str, Any]]:
    """The rows, printed as they come."""
    rows, peaks, rounds = list[dict[str, Any]](), dict[str, int](), run.watched()
    while launcher.poll() is None:
        done, found = rounds.look().round, processes(launcher.pid, run)
        for role, (_, memory) in found.items():
            peaks[role] = max(peaks.get(role, 0), memory)
        if marks and done >= marks[0]:
            marks = [mark for mark in marks if mark > done]
            rows.append(
                {
                    "rounds": done,
                    **{role: {"cpu": cpu, "mib": memory} for role, (cpu, memory) in found.items()},
                }
            )
            words = [
                f"{role} {cpu:.1f} CPU s {memory} MiB" for role, (cpu, memory) in found.items()
            ]
            print(f"{done:>6} rounds  " + "  ".join(words), flush=True)
        time.sleep(0.2)
    print("  highest  " + "  ".join(f"{role} {memory} MiB" for role, memory in peaks.items()))
    return [*rows, {"highest": peaks}]


def processes(launcher: int, run: RunDirectory) -> dict[str, tuple[float, int]]:
    """By role: CPU seconds, and resident MiB. Of several actors the largest is taken."""
    state, found = run.doing(), dict[str, tuple[float, int]]()
    try:
        others = list(marked(json.loads(run.launch_file.read_text())["marker"]))
    except (OSError, ValueError):
        others = []
    for process in [psutil.Process(launcher), *others]:
        try:
            line = " ".join(process.cmdline())
            role = (
                "launcher"
                if process.pid == launcher
                else next((r for word, r in ROLES.items() if word in line), "")
            )
            if state and process.pid == state["pid"] != launcher:
                role = "server"
            times, memory = process.cpu_times(), process.memory_info().rss >> 20
        except psutil.Error:
            continue
        if role:
            found[role] = max(
                found.get(role, (0.0, 0)),
                (times.user + times.system, memory),
                key=lambda pair: pair[1],
            )
    return found


def reported(output: Path) -> dict[str, Any]:
    """`pfedlora report` of the run."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [*PFEDLORA, "report", str(output)], cwd=HERE, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("the report failed")
    seconds, cpu = time.perf_counter() - began, usage.ru_utime + usage.ru_stime
    return {"seconds": round(seconds, 1), "cpu": round(cpu, 1), "peak_mib": usage.ru_maxrss >> 10}


if __name__ == "__main__":
    main()
