"""The comparator: a Flower simulation as Flower's PyTorch tutorials write it, with the work of
Standalone or LG-FedAvg.

    python benchmarks/stock_flower.py DATA [--clients 10] [--sampled 10] [--rounds 6]      # DATA
    holds CIFAR-10's train.parquet; --synthetic N takes N random images in its place

A Message-API client with a DataLoader over PIL images (ToTensor, Normalize), the five CNNs, the
whole model kept in `context.state`, the last layer averaged by Flower's FedAvg; batch 64, one local
epoch unless --epochs says another number, no evaluation; with --device cuda its clients share a
GPU. It stays as it is, so that figures of different days compare. Prints one JSON
line: median and all seconds a round, the first left out, and the numbers of clients and of samples
a client."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from PIL import Image
from plain_loop import SHAPES, PlainCNN, read_train
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

SAMPLES, BATCH = 48_000, 64


class Images(Dataset[tuple[Tensor, int]]):
    """Pixels, uint8 [n, 32, 32, 3], made an image and a normalised tensor each time they are
    read."""

    def __init__(self, pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> None:
        from torchvision.transforms import Compose, Normalize, ToTensor

        self.pixels, self.labels = pixels, labels
        self.transform = Compose(
            [ToTensor(), Normalize((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[i])), int(self.labels[i])


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """One local epoch on this node's part."""
    k = int(context.node_config["partition-id"])
    data = np.load(part_file(k))
    loader = DataLoader(Images(data["pixels"], data["labels"]), batch_size=BATCH, shuffle=True)
    net, device = PlainCNN(*SHAPES[k % len(SHAPES)]), os.environ["STOCK_DEVICE"]
    if "net" in context.state:
        net.load_state_dict(context.state["net"].to_torch_state_dict())
    net.fc3.load_state_dict(message.content["arrays"].to_torch_state_dict())
    net.to(device).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for _ in range(int(os.environ["STOCK_EPOCHS"])):
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(net(images.to(device)), labels.to(device)).backward()
            optimizer.step()
    net.cpu()
    context.state["net"] = ArrayRecord(net.state_dict())
    metrics = MetricRecord({"num-examples": len(data["labels"])})
    content = RecordDict({"arrays": ArrayRecord(net.fc3.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """Flower's FedAvg, which notes each round's seconds from configuring to aggregating."""

    seconds: ClassVar[list[float]] = []

    def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        self.began = time.perf_counter()
        return super().configure_train(*args, **kwargs)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        result = super().aggregate_train(server_round, list(replies))
        self.seconds.append(time.perf_counter() - self.began)
        return result


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("data", type=Path, nargs="?")
    cli.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    for name, default in (
        ("clients", 10),
        ("sampled", 10),
        ("rounds", 6),
        ("epochs", 1),
        ("synthetic", 0),
    ):
        cli.add_argument(f"--{name}", type=int, default=default)
    a = cli.parse_args()
    os.environ |= {"STOCK_DEVICE": a.device, "STOCK_EPOCHS": str(a.epochs)}
    gpus = 1 / a.sampled if a.device == "cuda" else 0.0
    with tempfile.TemporaryDirectory(prefix="stock-flower-") as folder:
        os.environ["STOCK_FLOWER"] = folder  # the actors inherit it
        samples = write_parts(a.data, a.clients, a.synthetic)
        server = ServerApp()

        @server.main()
        def run(grid: Grid, context: Context) -> None:
            start = ArrayRecord(PlainCNN(*SHAPES[-1]).fc3.state_dict())
            strategy = Timed(
                fraction_train=a.sampled / a.clients,
                fraction_evaluate=0.0,
                min_available_nodes=a.clients,
            )
            strategy.start(grid=grid, initial_arrays=start, num_rounds=a.rounds)

        run_simulation(
            server,
            client,
            a.clients,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": gpus}},
        )
    rest = Timed.seconds[1:]
    found = {"median": round(statistics.median(rest), 3), "seconds": [round(s, 2) for s in rest]}
    print(json.dumps(found | {"clients": a.clients, "sampled": a.sampled, "samples": samples}))


def write_parts(data: Path, clients: int, synthetic: int) -> int:
    """Each client's images in a file, and how many: the training images sorted by label, in equal
    parts."""
    if synthetic:
        draws = np.random.default_rng(0)
        pixels = draws.integers(0, 256, (synthetic, 32, 32, 3), dtype=np.uint8)
        labels = draws.integers(0, 10, synthetic)
    else:
        pixels, labels = read_train(data)
    size = min(SAMPLES, len(labels)) // clients
    order = np.argsort(labels, kind="stable")
    for k in range(clients):
        part = order[k * size : (k + 1) * size]
        np.savez(part_file(k), pixels=pixels[part], labels=labels[part])
    return size


def part_file(client: int) -> Path:
    return Path(os.environ["STOCK_FLOWER"]) / f"{client}.npz"


if __name__ == "__main__":
    main()
