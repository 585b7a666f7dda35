"""What a round of sums costs a client and the server, beside one epoch of a head.

    python -m benchmarks.sums_cost

For several widths d of the coordinates, with 100 classes of which a client holds ten, five samples
of each, as its frozen encoder gave them: a visit that sends sums, the server's checks and addition
of one client's, a visit that solves the head by the sums of all, and one epoch of Standalone's head
(batches of 16). Milliseconds of the processor, one thread, the least of five; and numbers up, in
the clear and under masks."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from benchmarks.dp_cost import least
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.federation.visit import visit
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.sums import OfSums
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.kinds import named
from pfedlora_flwr.training.loop import Samples

CLASSES, HELD, EACH = 100, 10, 5
WIDTHS = (240, 1000, 1280)
METHODS = ("fedncm", "fedlda", "fedridge")


class Given(nn.Sequential):
    """A head behind an encoder that gives what it gets."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__(nn.Flatten(), nn.Linear(shape[0], classes))


def main() -> None:
    torch.set_num_threads(1)
    print(
        f"{'d':>5} {'method':>9} {'sends':>8} {'server':>8} {'solves':>8} {'numbers up':>11} masked"
    )
    for d in WIDTHS:
        task = Task(CLASSES, (d,), named("vectors"))
        draws = torch.Generator().manual_seed(d)
        labels = torch.arange(HELD).repeat_interleave(EACH)
        samples = Samples(torch.randn(HELD * EACH, d, generator=draws), labels)
        for name in METHODS:
            print(f"{d:>5} {name:>9} {row(name, task, samples)}", flush=True)
        print(f"{d:>5} an epoch of a head {epoch(task, samples):.1f}")


def keys(method: str) -> dict[str, Any]:
    own = {"representation-norm": "layer", "train": "head", "batch-size": 16, "augment": False}
    models = {"models": "benchmarks.sums_cost:Given", "initial-models": "architecture"}
    return own | models | {"method": method, "clients": 10}


def run(method: Any, model: nn.Module, received: Any, samples: Samples, round: int = 1) -> Any:
    return visit(method, model, received, samples, 0, round, None, samples)[0]


def epoch(task: Task, samples: Samples) -> float:
    method = registry.make(from_flat(keys("standalone")), task)
    return 1000 * least(lambda: run(method, method.initial_model(0), {}, samples))


def row(name: str, task: Task, samples: Samples) -> str:
    method = registry.make(from_flat(keys(name)), task)
    assert isinstance(method, OfSums)
    state = method.state_init(0)
    received = method.download(state, 0, 1)
    upload = run(method, method.initial_model(0), received, samples)
    # so many that Σ has an inverse, as in a federation
    more = replace(
        samples, inputs=samples.inputs.repeat(40, 1).normal_(), labels=samples.labels.repeat(40)
    )
    others = run(method, method.initial_model(1), received, more)
    total = method.aggregate({0: upload, 1: others}, state, 1)

    def server() -> None:
        method.check(upload, state, 0)
        method.aggregate({0: upload}, state, 1)

    model = method.initial_model(0)
    run(method, model, received, samples)
    back = method.download(total, 0, 2)
    first = copy.deepcopy(model)
    sends = 1000 * least(lambda: run(method, method.initial_model(0), received, samples))
    solves = 1000 * least(lambda: run(method, copy.deepcopy(first), back, samples, 2))
    up = sum(tensor.numel() for tensor in upload.tensors.values())
    masked = sum(tensor.numel() for tensor in method.nothing().values())
    return f"{sends:>8.1f} {1000 * least(server):>8.1f} {solves:>8.1f} {up:>11,} {masked:,}"


if __name__ == "__main__":
    main()
