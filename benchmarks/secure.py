"""Secure aggregation beside plain uploads: how far the means are apart, bytes and seconds a round.

    python -m benchmarks.secure [--clients 3,10,20,40] [--engine local|flower|deployment] [--rounds
    4] [--max-samples 10000]

pFedLoRA on the digits, split evenly. Both sides begin with the same state, so after round 1 their
difference is the rounding's alone; it stands beside what the rounding may do at most. Seconds are
the median of the later rounds, evaluation left out; CPU seconds, by the local engine alone, are of
all parties together, and what secure takes more. `deployment` is a SuperLink and a SuperNode a
client on this machine. Prints a row for each number of clients and one JSON line."""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.rounds import options
from pfedlora_flwr.features.masks.keys import LEVELS
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.runs.directory import RunDirectory
from tests.deployment.processes import Federation

SIDES = ("plain", "secure")
_PATIENCE = 1800.0


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--clients", default="3,10,20,40")
    cli.add_argument("--engine", default="local", choices=("local", "flower", "deployment"))
    cli.add_argument("--rounds", type=int, default=4)
    cli.add_argument("--max-samples", type=int, default=10_000)
    a = cli.parse_args()
    print(
        "  K  largest difference  at most  KB a client and round  s a round  CPU s more", flush=True
    )
    found = [measure(int(k), a) for k in a.clients.split(",")]
    print(json.dumps({"arguments": vars(a), "rows": found}))


def measure(clients: int, a: argparse.Namespace) -> dict[str, Any]:
    """A row: both sides' states after round 1, which a run of more than two rounds no longer holds,
    and what `rounds` rounds cost."""
    with tempfile.TemporaryDirectory() as folder:
        found = {
            side: run(side, clients, a.rounds, a, Path(folder) / f"all-{side}") for side in SIDES
        }
        costs = {side: cost for side, (_, cost) in found.items()}
        if a.rounds > 2:
            found = {side: run(side, clients, 1, a, Path(folder) / f"one-{side}") for side in SIDES}
    plain, secure = (found[side][0] for side in SIDES)
    worst = max(float((plain[name] - secure[name]).abs().max()) for name in plain)
    samples = 1797 * 0.8  # of all clients together
    bound = 2 * clients / LEVELS * a.max_samples / samples
    row = {"clients": clients, "difference": worst, "bound": bound, **costs}
    more = (
        f"{(costs['secure']['cpu'] - costs['plain']['cpu']) / a.rounds:.2f}"
        if a.engine == "local"
        else "-"
    )
    kilobytes, seconds = (
        " → ".join(f"{costs[side][name]:.{n}f}" for side in SIDES)
        for name, n in (("kilobytes", 0), ("seconds", 2))
    )
    print(
        f"{clients:>3}  {worst:18.1e}  {bound:7.1e}  {kilobytes:>21}  {seconds:>9}  {more:>10}",
        flush=True,
    )
    return row


def run(
    side: str, clients: int, rounds: int, a: argparse.Namespace, folder: Path
) -> tuple[Tensors, dict[str, float]]:
    """The state after the first round that the run still holds, and what its rounds cost."""
    keys: dict[str, Any] = {
        "clients": clients,
        "rounds": rounds,
        "partition.kind": "iid",
        "batch-size": 16,
        "evaluate-initial": "false",
    }
    keys |= {"evaluate-every": rounds, "device": "cpu"}
    if side == "secure":
        keys |= {"secagg.enabled": "true", "secagg.max-samples": a.max_samples}
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    if a.engine == "deployment":
        deploy(keys, clients, folder)
    else:
        words = options(keys | {"output": folder / "run"})
        command = [
            sys.executable,
            "-m",
            "pfedlora_flwr.cli",
            "run",
            "--quiet",
            "--engine",
            a.engine,
            *words,
        ]
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    directory = RunDirectory(folder / "run")
    rows = directory.rounds()
    state = directory.checkpoints.load(before=min(directory.checkpoints.rounds()) + 1)
    assert state is not None
    later = [row["seconds"] - row["server_seconds"].get("evaluate", 0.0) for row in rows[1:]] or [
        0.0
    ]
    return state.tensors, {
        "kilobytes": (
            sum(row["wire_up"] + row["wire_down"] for row in rows) / rounds / clients / 1000
        ),
        "seconds": statistics.median(later),
        "cpu": ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime,
    }


def deploy(keys: dict[str, Any], clients: int, folder: Path) -> None:
    with Federation(folder) as federation:
        federation.start_superlink()
        for node in range(clients):
            federation.start_node(node, partition_id=node, num_partitions=clients)
        if federation.submit(keys).wait(_PATIENCE):
            raise SystemExit(federation.log("submit"))


if __name__ == "__main__":
    main()
