"""The whole application by actors, on this machine's GPU where there is one: seconds a round of
`pfedlora run`.

    python -m benchmarks.actors [--actors 1,2,4,8,16] [--clients 10,100] [--precision fp32,bf16]
    [--epochs 1] [--rounds 4] [--samples 4800]
        [--method pfedlora]

Synthetic images of CIFAR's size, `samples` a client of 10 clients and a tenth of that of 100, of
which 10 are sampled a round; CNN-1 to CNN-5, batch 64. The median round without the first; `busy`:
the actors' share of it in visits; on a GPU what nvidia-smi says: the mean share of the time that it
is busy from the second round to the last, and its peak memory. At last a round there beside one on
the CPU: ‖difference‖ / ‖CPU‖ of the shared part. Prints a table and one JSON line."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.rounds import options, output, read
from pfedlora_flwr.runs.directory import RunDirectory

SAMPLED = 10
_ASK = "--query-gpu=utilization.gpu,memory.used"


def main() -> None:
    cli = argparse.ArgumentParser()
    for name, default in (
        ("actors", "1,2,4,8,16"),
        ("clients", "10,100"),
        ("precision", "fp32,bf16"),
        ("method", "pfedlora"),
    ):
        cli.add_argument(f"--{name}", default=default)
    for name, number in (("epochs", 1), ("rounds", 4), ("samples", 4800)):
        cli.add_argument(f"--{name}", type=int, default=number)
    a = cli.parse_args()
    rows = []
    for clients, precision, actors in itertools.product(
        *(x.split(",") for x in (a.clients, a.precision, a.actors))
    ):
        keys = {
            "method": a.method,
            "clients": int(clients),
            "precision": precision,
            "actors": int(actors),
            "local-epochs": a.epochs,
        }
        rows.append(measure(keys | {"rounds": a.rounds}, a.samples * SAMPLED))
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    found: dict[str, Any] = {"arguments": vars(a), "rows": rows}
    if torch.cuda.is_available():
        found["gpu"], found["difference"] = torch.cuda.get_device_name(0), difference(a.method)
        print(
            f"{found['gpu']}: a round's shared part differs from the CPU's by"
            f" {found['difference']:.1e}"
        )
    print(json.dumps(found))


def measure(keys: dict[str, Any], images: int) -> dict[str, Any]:
    """One run's row. images: of all clients together."""
    with tempfile.TemporaryDirectory() as folder, Gpu() as gpu:
        run = start(Path(folder) / "run", keys | {"dataset": f"synthetic:{images}"})
        lines = [run.path / f"{name}.jsonl" for name in ("rounds", "clients")]
        rounds, visits = ([row for row in read(path) if row["round"] > 1] for path in lines)
        ended = lines[0].stat().st_mtime
    took = sum(row["seconds"] for row in rounds)
    seconds = statistics.median(row["seconds"] for row in rounds)
    trained = sum(row["samples"] for row in visits) * keys["local-epochs"] / took
    at_work = sum(sum(row["seconds"].values()) for row in visits) / sum(
        row["seconds"] * row["workers"] for row in rounds
    )
    said = {name: keys[name] for name in ("clients", "precision", "actors")} | {
        "used": max(row["workers"] for row in rounds)
    }
    return (
        said
        | {"s a round": round(seconds, 3), "samples/s": round(trained), "busy": f"{at_work:.0%}"}
        | gpu.words(ended - took, ended)
    )


def difference(method: str) -> float:
    """Of the shared part after a round on the GPU from that on the CPU."""
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        keys = {"method": method, "dataset": "synthetic:6000", "clients": 10, "rounds": 1}
        for device in ("cuda", "cpu"):
            run = start(Path(folder) / device, keys | {"device": device})
            state = run.checkpoints.load()
            assert state is not None
            parts.append(torch.cat([t.flatten().double() for t in state.tensors.values()]))
    gpu, cpu = parts
    return float((gpu - cpu).norm() / cpu.norm())


def start(output_folder: Path, keys: dict[str, Any]) -> RunDirectory:
    """A completed run of these keys."""
    keys = {
        "participation": SAMPLED / keys["clients"],
        "evaluate-initial": "false",
        "output": output_folder,
    } | keys
    output([sys.executable, "-m", "pfedlora_flwr.cli", "run", "--quiet", *options(keys)])
    return RunDirectory(output_folder)


class Gpu:
    """What nvidia-smi says of the first GPU, five times a second, inside a `with`; nothing without
    one."""

    def __enter__(self) -> Gpu:
        self._said: list[tuple[float, int, int]] = []
        self._process: subprocess.Popen[str] | None = None
        if torch.cuda.is_available():
            command = [
                "nvidia-smi",
                "--id=0",
                _ASK,
                "--format=csv,noheader,nounits",
                "--loop-ms=200",
            ]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def words(self, first: float, last: float) -> dict[str, str]:
        """Of the time between."""
        said = [(busy, memory) for when, busy, memory in self._said if first <= when <= last]
        if not said:
            return {}
        return {
            "GPU busy": f"{statistics.mean(busy for busy, _ in said):.0f}%",
            "GPU MiB": str(max(memory for _, memory in said)),
        }

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            busy, memory = (int(word) for word in line.split(","))
            self._said.append((time.time(), busy, memory))


if __name__ == "__main__":
    main()
