"""What a visit on one thread costs beside its own convolutions and products alone, as a loop: what
a training step of PyTorch cannot go below there, and what lies between, by operator.

    python -m benchmarks.step_profile [--methods standalone,pfedlora] [--models cnn1,cnn5]

One batch's operators are recorded; those that multiply are repeated on the same tensors, without
autograd and Python's modules. Both sides alternately, processor seconds, medians."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.federation.visit import visit
from pfedlora_flwr.methods import registry
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.device import channels_last, keep_freed_memory
from pfedlora_flwr.training.loop import Samples

BATCH, BATCHES, REPEATS, SHOWN = 64, 30, 7, 12
PRODUCTS = ("convolution", "mm", "addmm", "bmm", "linear_pointwise")
"""Parts of the names of operators that multiply."""


class Recorded(TorchDispatchMode):
    """The operators that multiply, with what they were given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, named = func.overloadpacket.__name__, kwargs or {}
        if any(part in name for part in PRODUCTS):
            self.calls.append(lambda: func(*args, **named))
        return func(*args, **named)


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--methods", default="standalone,pfedlora")
    cli.add_argument("--models", default="cnn1,cnn5")
    a = cli.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    for method in a.methods.split(","):
        for model in a.models.split(","):
            compare(method, model)


def compare(method: str, model: str) -> None:
    """Prints what a batch costs, and where it goes."""
    visited = visitor(method, model)
    recorded = Recorded()
    with recorded:
        visited(1)
    visited(2)
    with torch.no_grad():
        sides: dict[str, list[float]] = {"visit": [], "alone": []}
        for _ in range(REPEATS):
            sides["visit"].append(spent(lambda: visited(BATCHES)) / BATCHES)
            sides["alone"].append(
                spent(lambda: [[call() for call in recorded.calls] for _ in range(BATCHES)])
                / BATCHES
            )
    whole, alone = (statistics.median(seconds) * 1e3 for seconds in sides.values())
    print(
        f"{method} {model}: {whole:.2f} ms a batch, its {len(recorded.calls)} products alone",
        end="",
    )
    print(f" {alone:.2f} ({alone / whole:.0%})")
    with profile(activities=[ProfilerActivity.CPU]) as told:
        visited(BATCHES)
    events = sorted(told.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    for event in events[:SHOWN]:
        share, calls = event.self_cpu_time_total / total, event.count / BATCHES
        print(f"    {share:6.1%}  {calls:5.1f} a batch  {event.key}")


def visitor(method_name: str, model_name: str) -> Callable[[int], None]:
    """A client's visit over so many batches."""
    keys = {"method": method_name, "models": f"{model_name},cnn5", "local-epochs": 1}
    experiment = from_flat(keys | {"batch-size": BATCH})
    method = registry.find(method_name)(experiment, Task(10))
    model = channels_last(method.private_init(0, 1))
    received = method.download(method.state_init(1), 0, 1)
    pixels = torch.randint(0, 256, (BATCH * BATCHES, 32, 32, 3), dtype=torch.uint8)
    labels = torch.randint(0, 2, (len(pixels),))
    scale, shift = torch.full((3,), 1 / 64), torch.full((3,), -2.0)

    def visited(batches: int) -> None:
        n = batches * BATCH
        with torch.enable_grad():
            data = Samples(pixels[:n], labels[:n], scale, shift)
            visit(method, model, received, data, client=0, round=1)

    return visited


def spent(work: Callable[[], object]) -> float:
    """Processor seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
