"""Scale: the cost of a round must follow K, the clients sampled, and not N, the clients there are.
Synthetic data, 30 samples a client.

    python -m benchmarks.scale [--clients 10,100,1000] [--sampled 10,100] [--rounds 4] [--samples
    30]

Prints for each N and K: seconds a round (median, the first left out), seconds a sampled client,
bytes a round, peak memory of all processes, the seconds of start and end together, and by stage:
from the command to the server's first line (`launch`), until it asks for nodes (`data`), until
round 1 begins (`connect`), the rounds until the result is there (`rounds`), and until the command
is back (`exit`); and one JSON line."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.rounds import options, read
from pfedlora_flwr.runs.directory import RunDirectory

STAGES = {"launch": "starting", "data": "connecting", "connect": "training", "rounds": "result"}
"""By stage, the phase of a run that ends it."""


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--clients", default="10,100,1000")
    cli.add_argument("--sampled", default="10,100")
    cli.add_argument("--rounds", type=int, default=4)
    cli.add_argument("--samples", type=int, default=30)
    cli.add_argument("--method", default="pfedlora")
    a = cli.parse_args()
    rows = []
    for k in map(int, a.sampled.split(",")):
        for n in (n for n in map(int, a.clients.split(",")) if n >= k):
            rows.append(measure(a.method, n, k, a.rounds, a.samples))
            print("  ".join(f"{name} {value}" for name, value in rows[-1].items()))
    print(json.dumps({"arguments": vars(a), "rows": rows}))


def measure(method: str, clients: int, sampled: int, rounds: int, samples: int) -> dict[str, Any]:
    """One run; memory by peak_memory.py."""
    with tempfile.TemporaryDirectory() as folder:
        keys = {
            "method": method,
            "dataset": f"synthetic:{clients * samples}",
            "clients": clients,
            "participation": sampled / clients,
        }
        keys |= {
            "partition.kind": "iid",
            "rounds": rounds,
            "evaluate-initial": "false",
            "output": f"{folder}/run",
            "node-timeout": 1800,
        }
        pfedlora = [str(Path(sys.executable).with_name("pfedlora")), "run", "--quiet"]
        memory = [sys.executable, str(Path(__file__).with_name("peak_memory.py"))]
        began = time.time()
        with (Path(folder) / "output").open("w+") as output:
            process = subprocess.Popen([*memory, *pfedlora, *options(keys)], stdout=output)
            reached = watch(process, RunDirectory(Path(folder) / "run"))
            output.seek(0)
            said = json.loads(output.read().splitlines()[-1])
        if said["exit"]:
            raise SystemExit(said["exit"])
        rows = read(Path(folder) / "run" / "rounds.jsonl")
    times = [began, *(reached[stage] for stage in STAGES.values()), began + said["seconds"]]
    stages = {
        name: round(after - before, 1)
        for name, before, after in zip([*STAGES, "exit"], times, times[1:], strict=False)
    }
    seconds = statistics.median(row["seconds"] for row in rows[1:])
    return {
        "N": clients,
        "K": sampled,
        "seconds a round": round(seconds, 3),
        "a sampled client": round(seconds / sampled, 4),
        "bytes a round": rows[-1]["bytes_up"] + rows[-1]["bytes_down"],
        "peak GiB": said["peak_gib"],
        "start-up and end": round(said["seconds"] - sum(row["seconds"] for row in rows), 1),
        **stages,
    }


def watch(process: subprocess.Popen[bytes], run: RunDirectory) -> dict[str, float]:
    """When each of the run's phases was first seen, until it ends."""
    reached: dict[str, float] = {}
    while process.poll() is None:
        with suppress(OSError):
            state = run.doing()
            if state:
                reached.setdefault(state["phase"], state["time"])
            if run.result():
                reached.setdefault("result", time.time())
        time.sleep(0.1)
    return reached


if __name__ == "__main__":
    main()
