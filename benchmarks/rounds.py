"""Whole rounds inside `flwr run`, beside two yardsticks: a plain loop (plain_loop.py) and a stock
Flower app (stock_flower.py).

    python -m benchmarks.rounds DATA [--methods standalone,pfedlora,…] [--clients 10] [--sampled 10]
    [--rounds 6] [--repeats 3]
        [--epochs 1] [--precision fp32] [--htfllib CHECKOUT]

CHECKOUT: a clone of HtFLlib, whose Standalone is then a side, too (htfllib.py).

CIFAR-10, heterogeneous, batch 64. The sides run alternately, `repeats` times each; a side's figure
is the median of its runs' medians (seconds a round with evaluation, first round left out; HtFLlib
and the yardsticks do not evaluate). Prints a table, where the actors' time went, and one JSON
line."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.sides import methods

HERE = Path(__file__).resolve().parent


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("data")
    cli.add_argument("--methods", default=methods())
    cli.add_argument("--precision", default="fp32")
    cli.add_argument("--htfllib", default="")
    for name, default in (
        ("clients", 10),
        ("sampled", 10),
        ("rounds", 6),
        ("repeats", 3),
        ("epochs", 1),
    ):
        cli.add_argument(f"--{name}", type=int, default=default)
    a = cli.parse_args()
    sides = ["stock flower", *(m for m in a.methods.split(",") if m)]
    if a.htfllib:
        if a.clients != a.sampled:
            cli.error("--htfllib needs --sampled to be --clients")
        sides.insert(0, "htfllib")
    if a.clients == a.sampled == 10:  # what the plain loop does
        sides.insert(0, "plain loop")
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(a.repeats):
        for side in sides:
            found[side].append(measure(side, a))
            print(f"{side}: {found[side][-1]['seconds']:.2f} s a round", file=sys.stderr)
    medians = {side: statistics.median(f["seconds"] for f in runs) for side, runs in found.items()}
    base = medians.get("plain loop", medians[sides[0]])
    print(
        f"{'side':>14}  s a round  spread  relative  busy  where the actors' seconds, the server's"
        " and the rest went"
    )
    for side, runs in found.items():
        spread = (max(f["seconds"] for f in runs) - min(f["seconds"] for f in runs)) / medians[side]
        parts = runs[-1].get("parts", {})
        where = "  ".join(f"{name} {share:.0%}" for name, share in parts.items())
        if parts:
            where += "; server: " + "  ".join(
                f"{name} {share:.1%}" for name, share in runs[-1]["server"].items()
            )
            where += f"; start and end {runs[-1]['startup']:.0f} s"
        busy = f"{parts['train'] + parts['evaluate']:.0%}" if parts else ""
        print(
            f"{side:>14}  {medians[side]:9.2f}  {spread:6.0%}  {medians[side] / base:8.2f} "
            f" {busy:>4}  {where}"
        )
    print(json.dumps({"arguments": vars(a), "medians": medians, "runs": found}))


def measure(side: str, a: argparse.Namespace) -> dict[str, Any]:
    """Seconds a round of one run of one side."""
    if side == "plain loop":
        return {"seconds": float(output([sys.executable, str(HERE / "plain_loop.py"), a.data]))}
    if side in ("stock flower", "htfllib"):
        script, where = f"{side.replace(' ', '_')}.py", [a.data]
        counts = ["--clients", str(a.clients), "--rounds", str(a.rounds)]
        if side == "htfllib":
            where = [a.htfllib, a.data]
        else:
            counts += ["--sampled", str(a.sampled)]
        said = json.loads(
            output([sys.executable, str(HERE / script), *where, *counts]).splitlines()[-1]
        )
        return {"seconds": said["median"], "samples": said["samples"]}
    with tempfile.TemporaryDirectory() as folder:
        keys = {
            "method": side,
            "dataset": "cifar10",
            "data-path": a.data,
            "clients": a.clients,
            "participation": a.sampled / a.clients,
        }
        keys |= {
            "rounds": a.rounds,
            "local-epochs": a.epochs,
            "precision": a.precision,
            "output": f"{folder}/run",
            "evaluate-initial": "false",
        }
        began = time.perf_counter()
        output([str(Path(sys.executable).with_name("pfedlora")), "run", "--quiet", *options(keys)])
        whole = time.perf_counter() - began
        rounds, visits = (
            read(Path(folder) / "run" / f"{name}.jsonl") for name in ("rounds", "clients")
        )
    rounds, visits = ([row for row in rows if row["round"] > 1] for rows in (rounds, visits))
    wall, workers = sum(row["seconds"] for row in rounds), max(row["workers"] for row in rounds)
    parts = {
        part: sum(row["seconds"][part] for row in visits) / (wall * workers)
        for part in ("load", "train", "evaluate", "save")
    }
    parts["idle"] = 1 - sum(parts.values())
    server = {
        part: sum(row["server_seconds"].get(part, 0.0) for row in rounds) / wall
        for part in ("prepare", "wait", "aggregate", "record")
    }
    return {
        "seconds": statistics.median(row["seconds"] for row in rounds),
        "startup": whole - wall,
        "workers": workers,
        "parts": parts,
        "server": server,
        "accuracy": rounds[-1]["accuracy"],
    }


def options(keys: Mapping[str, object]) -> list[str]:
    """These keys as the options of a command."""
    return [word for key, value in keys.items() for word in ("-o", f"{key}={value}")]


def output(command: list[str]) -> str:
    """The command's standard output; a failure is shown whole."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
