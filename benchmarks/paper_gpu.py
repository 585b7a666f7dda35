"""Runs of the paper's Table 2 at N = 100, as many as fit the time.

    python -m benchmarks.paper_gpu OUTPUT [--data DIR] [--seconds 540] [--rounds 500] [--device cpu]

A comparison in the folder OUTPUT, by the base of conf/paper/table2.yaml: pFedLoRA, Standalone and
FedProto, one seed, C = 10 %, E = 10, batches of 64, the default μ and h, in lanes of one GPU;
CIFAR-10 and CIFAR-100 as they are in the cache, or CIFAR-10 alone from DIR. When the seconds are
over it is stopped, and the same command goes on. Prints how far each run is.

--device cpu is a small try of the same with synthetic images."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import yaml

TABLE = Path(__file__).resolve().parent.parent / "conf" / "paper" / "table2.yaml"
PAPER = {"clients": 100, "participation": 0.1, "local-epochs": 10, "batch-size": 64}
SMALL = {"clients": 10, "participation": 0.3, "local-epochs": 1, "batch-size": 16}


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("output", type=Path)
    cli.add_argument("--data", default="")
    cli.add_argument("--seconds", type=float, default=540)
    cli.add_argument("--rounds", type=int, default=500)
    cli.add_argument("--methods", default="pfedlora,standalone,fedproto")
    cli.add_argument("--lanes", type=int, default=10)
    cli.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    a = cli.parse_args()
    if a.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no GPU that PyTorch sees: nothing is run; --device cpu is a try")
    a.output.mkdir(parents=True, exist_ok=True)
    file = a.output / "comparison.yaml"
    file.write_text(yaml.safe_dump(comparison(a)))
    words = ["compare", str(file), "--output", str(a.output / "runs")]
    process = subprocess.Popen([str(Path(sys.executable).with_name("pfedlora")), *words])
    try:
        process.wait(a.seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait()
    for lines in sorted((a.output / "runs").glob("**/rounds.jsonl")):
        show(lines, a.rounds)


def comparison(a: argparse.Namespace) -> dict[str, Any]:
    """What is run, as `pfedlora compare` reads it."""
    table = yaml.safe_load(TABLE.read_text())
    base = table["base"] | {"rounds": a.rounds, "device": a.device, "lanes": a.lanes}
    if a.device == "cpu":
        base |= SMALL
        data = [{"dataset": "synthetic:2000", "partition": {"classes-per-client": 2}}]
    else:
        base |= PAPER
        data = table["axes"]["data"][: 1 if a.data else None]
    if a.data:
        base["data-path"] = a.data
    return {"base": base, "methods": a.methods.split(","), "seeds": [0], "axes": {"data": data}}


def show(lines: Path, of: int) -> None:
    """A run so far: its last mean test accuracy, and its seconds a round."""
    rows = [row for row in map(json.loads, lines.read_text().splitlines()) if row["round"]]
    name = lines.parent.relative_to(lines.parents[3])
    if rows:
        accuracy = next((r["accuracy"] for r in reversed(rows) if r["accuracy"] is not None), None)
        took = sum(row["seconds"] for row in rows) / len(rows)
        print(f"{name}: round {len(rows)} of {of}, accuracy {accuracy}, {took:.2f} s a round")


if __name__ == "__main__":
    main()
