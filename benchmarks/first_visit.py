"""The first visits of round 1 of pFedLoRA on CIFAR-100: the representation R before and after phase
1, and phase 2 in a plain PyTorch loop.

    python -m benchmarks.first_visit first_visit.csv [FOLDER OF THE DATA]

The ten clients of the page's runs, seed 0, by the keys that the page changes. Writes a CSV and
prints medians. Two minutes on a core."""

from __future__ import annotations

import copy
import csv
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data.local import Site
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.rng import derive, torch_generator
from pfedlora_flwr.training.loop import Visit, infer

BASE = {
    "dataset": "cifar100",
    "clients": 100,
    "participation": 0.1,
    "partition.classes-per-client": 10,
    "local-epochs": 5,
}
CLIENTS = (2, 3, 8, 13, 15, 22, 23, 69, 88, 96)
KEYS: dict[str, dict[str, object]] = {
    "mu=0.5": {},
    "mu=0.9": {"mu": 0.9},
    "mu=1, which is Standalone": {"mu": 1.0},
    "lr=0.02": {"lr": 0.02},
    "adapter.init=lora": {"adapter.init": "lora"},
}


def first_visit(client: int, keys: dict[str, object], folder: str) -> dict[str, float]:
    """Means over the client's training images, as its first visit begins and after its phase 1; and
    phase 2's last epoch."""
    experiment = from_flat({**BASE, **keys})
    method, seed = PFedLoRA(experiment, DataSetup(experiment, folder).task), experiment.seed
    data = Site.find(experiment, client, {"data-path": folder}).load(torch.device("cpu")).train
    model = method.predictor(method.initial_model(client).to(memory_format=torch.channels_last))
    visit = Visit(experiment, client, 1, torch_generator(seed, "train", client, 1))
    adapter = method.received_adapter(model, method.state_init(derive(seed, "state")), data)
    found = {}
    for when in ("before", "after"):
        if when == "after":
            method.train_model(model.train(), adapter, data, visit)
        r = infer(model.encode, data)
        with torch.no_grad():
            found[f"norm of R {when}"] = float(r.norm(dim=1).mean())
            found[f"own loss {when}"] = float(cross_entropy(model.last_layer()(r), data.labels))
            found[f"loss through the adapter {when}"] = float(
                cross_entropy(adapter(r), data.labels)
            )
    for lr in (0.01, 0.001):
        found[f"phase 2 at {lr}"] = last_loss(copy.deepcopy(adapter), r, data.labels, lr)
    return found


def last_loss(adapter: torch.nn.Module, r: torch.Tensor, labels: torch.Tensor, lr: float) -> float:
    """The mean loss of the last of five epochs of SGD with momentum 0.9 in batches of 64."""
    optimizer = torch.optim.SGD(adapter.parameters(), lr, momentum=0.9)
    generator, total = torch.Generator().manual_seed(0), 0.0
    for _ in range(5):
        total = 0.0
        for batch in torch.randperm(len(r), generator=generator).split(64):
            loss = cross_entropy(adapter(r[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(batch)
    return total / len(r)


def main() -> None:
    torch.set_num_threads(1)
    folder = sys.argv[2] if len(sys.argv) > 2 else ""
    rows: list[dict[str, Any]] = [
        {"keys": name, "client": k, **first_visit(k, keys, folder)}
        for name, keys in KEYS.items()
        for k in CLIENTS
    ]
    with Path(sys.argv[1]).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )
    for name in KEYS:
        of = [row for row in rows if row["keys"] == name]
        medians = {
            k: statistics.median(float(row[k]) for row in of)
            for k in of[0]
            if k not in ("keys", "client")
        }
        print(name, *(f"{k} {v:.2f}" for k, v in medians.items()), sep="; ")


if __name__ == "__main__":
    main()
