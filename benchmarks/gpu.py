"""The engine alone on a GPU, in one call: captured steps against eager ones, then speed against a
stock loop. Flower is not needed.

    python -m benchmarks.gpu [--rounds 3] [--epochs 2] [--clients 5]

Synthetic uint8 images of CIFAR's size, 4,800 a client, CNN-1 to CNN-5, batch 64. Prints: how far
captured and eager training differ; seconds a round of the stock loop (DataLoader, eager), of ours,
eager and captured, for Standalone and pFedLoRA, each as it is measured; samples/s beside the limits
(launches, memory, arithmetic); and one JSON line."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from benchmarks.machine import seconds, sgemm
from pfedlora_flwr.config import from_flat
from pfedlora_flwr.federation.visit import visit
from pfedlora_flwr.methods import registry
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training import graphs
from pfedlora_flwr.training.loop import Samples

SAMPLES = 4800
GPU = torch.device("cuda")


def main() -> None:
    cli = argparse.ArgumentParser()
    for name, default in (("rounds", 3), ("epochs", 2), ("clients", 5)):
        cli.add_argument(f"--{name}", type=int, default=default)
    a = cli.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU that PyTorch sees: nothing is measured")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    images = torch.randint(0, 256, (a.clients, SAMPLES, 32, 32, 3), dtype=torch.uint8)
    labels = torch.randint(0, 2, (a.clients, SAMPLES))
    found: dict[str, object] = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "arguments": vars(a),
    }
    found["captured-against-eager"] = differences(images, labels)
    trained = a.clients * SAMPLES * a.epochs
    sides: dict[str, Callable[[], None]] = {"stock loop": lambda: stock(images, labels, a.epochs)}
    for method in ("standalone", "pfedlora"):
        for precision in ("fp32", "bf16"):
            sides[f"{method} {precision}"] = engine(
                method, images, labels, a.epochs, precision, captured=True
            )
        sides[f"{method} eager"] = engine(method, images, labels, a.epochs, "fp32", captured=False)
    times: dict[str, list[float]] = {side: [] for side in sides}
    for round in range(a.rounds + 1):  # the first one warms up
        for side, work in sides.items():
            if side == "stock loop" and round > 2:
                continue  # it is slow, and its figure does not move
            torch.cuda.synchronize()
            began = time.perf_counter()
            work()
            torch.cuda.synchronize()
            if round:
                times[side].append(time.perf_counter() - began)
                print(f"round {round}, {side}: {times[side][-1]:.3f} s", flush=True)
    medians = {side: statistics.median(t) for side, t in times.items()}
    for side, median in medians.items():
        faster = medians["stock loop"] / median
        print(
            f"{side:>16}  {median:8.3f} s a round  {trained / median:10.0f} samples/s "
            f" {faster:6.1f} x the stock loop  {times[side]}"
        )
    found |= {"seconds": medians, "limits": limits(medians["standalone fp32"] / trained)}
    print(json.dumps(found))


def visit_once(
    method_name: str,
    client: int,
    model: nn.Module | None,
    data: Samples,
    epochs: int,
    precision: str,
) -> nn.Module:
    """One client's visit, as the client app runs it; the trained module."""
    experiment = from_flat({"method": method_name, "local-epochs": epochs, "precision": precision})
    method = registry.find(method_name)(experiment, Task(10))
    if model is None:
        model = method.private_init(client, client).to(GPU).to(memory_format=torch.channels_last)
    received = {
        name: t.to(GPU) for name, t in method.download(method.state_init(1), client, 1).items()
    }
    visit(method, model, received, data, client, round=1)
    return model


def engine(
    name: str,
    images: torch.Tensor,
    labels: torch.Tensor,
    epochs: int,
    precision: str,
    captured: bool,
) -> Callable[[], None]:
    """A round of our engine: every client in turn, models and data resident."""
    scale, shift = torch.full((3,), 1 / 64, device=GPU), torch.full((3,), -2.0, device=GPU)
    data = [
        Samples(i.to(GPU), y.to(GPU), scale, shift) for i, y in zip(images, labels, strict=True)
    ]
    models: list[nn.Module | None] = [None] * len(data)

    def one_round() -> None:
        with capturing(captured):
            for client, samples in enumerate(data):
                models[client] = visit_once(
                    name, client, models[client], samples, epochs, precision
                )

    return one_round


class capturing:  # noqa: N801 - reads as a statement
    """Allows or forbids capturing inside a `with`."""

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed

    def __enter__(self) -> None:
        self.kept = graphs.capture
        if not self.allowed:
            graphs.capture = lambda step, order, batch: None

    def __exit__(self, *error: object) -> None:
        graphs.capture = self.kept


def differences(images: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """‖captured − eager‖ / ‖eager‖ over all weights after two epochs, by method; eager against
    itself shows the GPU's own noise."""
    scale, shift = torch.full((3,), 1 / 64, device=GPU), torch.full((3,), -2.0, device=GPU)
    # 15 batches and a rest
    data = Samples(images[0, :1000].to(GPU), labels[0, :1000].to(GPU), scale, shift)
    found = {}
    for name in registry.NAMES:
        if registry.find(name).one_model or registry.find(name).shares_lora:
            continue
        trained = []
        for allowed in (True, False, False):
            with capturing(allowed):
                torch.manual_seed(0)
                model = visit_once(name, 4, None, data, 2, "fp32")
                trained.append(
                    torch.cat([p.detach().flatten().double() for p in model.parameters()])
                )
        one, eager, again = trained
        found[name] = float((one - eager).norm() / eager.norm())
        found[f"{name} (eager twice)"] = float((again - eager).norm() / eager.norm())
        print(
            f"{name:>12}: captured against eager {found[name]:.2e}, eager against itself"
            f" {found[f'{name} (eager twice)']:.2e}",
            flush=True,
        )
    return found


class Stock(Dataset):
    """What a tutorial does for every sample."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.images[i].permute(2, 0, 1).float() / 255 - 0.5) / 0.25, self.labels[i]


def stock(images: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    """A round of Standalone as tutorials write it: DataLoader, eager steps."""
    from pfedlora_flwr.models.registry import build

    for client, (x, y) in enumerate(zip(images, labels, strict=True)):
        model = build(f"cnn{client % 5 + 1}", Task(10)).to(GPU)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        loader = DataLoader(Stock(x, y), batch_size=64, shuffle=True, num_workers=2)
        for _ in range(epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                cross_entropy(model(inputs.to(GPU)), targets.to(GPU)).backward()
                optimizer.step()


def limits(per_sample: float) -> dict[str, float]:
    """Ours beside the limits, for CNN-1 at batch 64: microseconds a sample if only launches, only
    memory or only arithmetic counted."""
    empty = torch.zeros(1, device=GPU)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            empty.add_(1)
    launch = seconds(graph.replay) / 100
    big = torch.empty(2**28, device=GPU)
    bandwidth = 2 * big.numel() * 4 / seconds(lambda: big.clone())
    found = {
        "ours": per_sample * 1e6,
        "launches": 60 * launch / 64 * 1e6,  # about 60 kernels a step
        # weights, gradients and momentum, each once a step
        "memory": 5 * 2_621_558 * 4 / bandwidth / 64 * 1e6,
        "arithmetic": 27_073_200 / (sgemm(8192, "cuda") * 1e9) * 1e6,
    }
    print(
        "microseconds a sample: "
        + ", ".join(f"{name} {value:.2f}" for name, value in found.items())
    )
    return found


if __name__ == "__main__":
    main()
