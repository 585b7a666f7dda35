"""HtFLlib's own training of the same models on the same split: its `Local`, which is Standalone.

    python benchmarks/htfllib.py CHECKOUT DATA [--clients 10] [--rounds 6]

CHECKOUT: a clone of github.com/TsingZ0/HtFLlib (tried: e959261), whose code runs as it is; it needs
h5py. DATA holds CIFAR-10's train.parquet. Its plain SGD, no evaluation but before the first round,
which is left out. Prints one JSON line, as stock_flower.py does."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from plain_loop import SHAPES, PlainCNN
from stock_flower import BATCH, part_file, write_parts
from torch import Tensor
from torch.nn.functional import max_pool2d, relu

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
TESTED = 10
"""Images of a client's test part, which HtFLlib must have."""


class Net(PlainCNN):
    """One of the five CNNs with its last layer named as HtFLlib looks for it."""

    def __init__(self, kind: int) -> None:
        super().__init__(*SHAPES[kind])
        self.fc = self.fc3
        del self.fc3

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, 32, 32] → what HtFLlib has put in the place of the last layer, of [B, 500]."""
        x = relu(max_pool2d(self.conv1(images), 2))
        x = relu(max_pool2d(self.conv2(x), 2)).flatten(1)
        return self.fc(relu(self.fc2(relu(self.fc1(x)))))


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("checkout", type=Path)
    cli.add_argument("data", type=Path)
    for name, default in (("clients", 10), ("rounds", 6)):
        cli.add_argument(f"--{name}", type=int, default=default)
    a = cli.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # it stores whole models
    sys.path.insert(0, str((a.checkout / "system").resolve()))
    with tempfile.TemporaryDirectory(prefix="htfllib-") as folder, redirect_stdout(sys.stderr):
        os.environ["STOCK_FLOWER"] = folder
        size = write_parts(a.data, a.clients, 0)
        for part in ("train", "test"):
            (Path(folder) / "dataset" / "cifar10" / part).mkdir(parents=True)
        for k in range(a.clients):
            write_client(k, Path(folder) / "dataset" / "cifar10")
        (Path(folder) / "system").mkdir()
        os.chdir(Path(folder) / "system")  # it reads ../dataset
        models = import_module("flcore.trainmodel.models")
        models.__dict__["Net"] = Net
        server = import_module("flcore.servers.serverlocal").Local(arguments(a), 0)
        server.train()
        os.chdir("/")
    rest = server.Budget[1:]
    found = {"median": round(statistics.median(rest), 3), "seconds": [round(s, 2) for s in rest]}
    print(json.dumps(found | {"clients": a.clients, "samples": size}))


def write_client(client: int, folder: Path) -> None:
    """A client's files as HtFLlib reads them."""
    part = np.load(part_file(client))
    images = (part["pixels"].transpose(0, 3, 1, 2) / 255).astype(np.float32)
    images -= np.array(MEAN, np.float32)[:, None, None]
    images /= np.array(DEVIATION, np.float32)[:, None, None]
    for name, rows in (("train", slice(None)), ("test", slice(TESTED))):
        data = {"x": images[rows], "y": part["labels"][rows]}
        np.savez(folder / name / f"{client}.npz", data=np.array(data, dtype=object))


def arguments(a: argparse.Namespace) -> argparse.Namespace:
    """HtFLlib's own, as its main.py names them."""
    return argparse.Namespace(
        algorithm="Local",
        dataset="cifar10",
        device="cpu",
        num_classes=10,
        models=[f"Net({kind})" for kind in range(len(SHAPES))],
        feature_dim=500,
        global_rounds=a.rounds - 1,  # it does one more
        local_epochs=1,
        batch_size=BATCH,
        local_learning_rate=0.01,
        num_clients=a.clients,
        join_ratio=1.0,
        random_join_ratio=False,
        few_shot=0,
        time_select=False,
        goal="test",
        time_threthold=10_000,
        top_cnt=100,
        auto_break=False,
        save_folder_name="temp",
        models_folder_name="",
        eval_gap=a.rounds + 1,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
    )


if __name__ == "__main__":
    main()
