"""Training throughput of each method and CNN on one thread: samples a second, and executed
operations as a share of the sgemm rate.

    python -m benchmarks.training [--methods standalone,pfedlora] [--models cnn1,cnn5] [--precision
    fp32] [--samples 1920] [--epochs 1]
        [--classes 10] [--csv FILE]

A client holds a tenth of the classes, and at least two. The sides run alternately, five times each;
medians, with the spread; FILE gets a row a method and CNN. The sgemm rate (PyTorch's own, one
thread) is taken in between."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from benchmarks import sides
from benchmarks.machine import sgemm
from benchmarks.results.page import write_csv
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.federation.visit import visit
from pfedlora_flwr.methods import registry
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.loop import Samples


def main() -> None:
    cli = argparse.ArgumentParser()
    for name, default in (("methods", sides.methods()), ("models", "cnn1,cnn2,cnn3,cnn4,cnn5")):
        cli.add_argument(f"--{name}", default=default)
    cli.add_argument("--precision", default="fp32")
    cli.add_argument("--repeats", type=int, default=5)
    cli.add_argument("--samples", type=int, default=1920)
    cli.add_argument("--epochs", type=int, default=1)
    cli.add_argument("--classes", type=int, default=10)
    cli.add_argument("--csv", type=Path)
    a = cli.parse_args()
    torch.set_num_threads(1)
    pixels = torch.randint(0, 256, (a.samples, 32, 32, 3), dtype=torch.uint8)
    data = Samples(
        pixels,
        torch.randint(0, max(2, a.classes // 10), (a.samples,)),
        torch.full((3,), 1 / 64),
        torch.full((3,), -2.0),
    )
    cells = [(m, c) for m in a.methods.split(",") for c in a.models.split(",")]
    times: dict[tuple[str, str], list[float]] = {cell: [] for cell in cells}
    flops: dict[tuple[str, str], int] = {}
    rates = []
    for _ in range(a.repeats):
        rates.append(sgemm(1024))
        for cell in cells:
            seconds, flops[cell] = visit_once(*cell, data, a.precision, a.epochs, a.classes)
            times[cell].append(seconds)
    rate = statistics.median(rates)
    rows = []
    for cell in cells:
        median = statistics.median(times[cell])
        spread = (max(times[cell]) - min(times[cell])) / median
        share = flops[cell] / median / rate / 1e9
        speed = a.samples * a.epochs / median
        rows.append(
            {
                "method": cell[0],
                "model": cell[1],
                "samples_per_second": speed,
                "sgemm_share": share,
                "spread": spread,
            }
        )
        print(
            f"{cell[0]:>10} {cell[1]}  {speed:8.0f} samples/s  {share:5.0%}"
            f" of sgemm  ± {spread / 2:.0%}"
        )
    if a.csv:
        columns = ("method", "model", "samples per CPU second", "spread")
        values = (
            (*cell, f"{row['samples_per_second']:.1f}", f"{row['spread']:.3f}")
            for cell, row in zip(cells, rows, strict=True)
        )
        write_csv(a.csv, columns, values)
    print(f"sgemm, one thread: {rate:.0f} GFLOP/s")
    print(json.dumps({"sgemm_gflops": rate, "precision": a.precision, "rows": rows}))


def visit_once(
    method_name: str, model_name: str, data: Samples, precision: str, epochs: int, classes: int
) -> tuple[float, int]:
    """CPU seconds and operations of one client's visit. `models` names CNN-5 second: the mutual
    methods share it."""
    keys = {
        "method": method_name,
        "models": f"{model_name},cnn5",
        "precision": precision,
        "local-epochs": epochs,
    }
    experiment = from_flat(keys)
    method = registry.find(method_name)(experiment, Task(classes))
    model = method.private_init(0, 1).to(memory_format=torch.channels_last)
    received = method.download(method.state_init(1), 0, 1)
    began = time.process_time()
    _, counts = visit(method, model, received, data, client=0, round=1)
    return time.process_time() - began, sum(counts.flops.values())


if __name__ == "__main__":
    main()
