"""Accuracy under differential privacy of single records, beside its controls, for docs/results/dp.

    pfedlora weights timm:tf_efficientnet_lite0 --output lite0.safetensors
    python -m benchmarks.dp_records CIFAR10 lite0.safetensors OUTPUT [--seeds 3]

CIFAR10 is the folder of the dataset's `train.parquet`, whose first 20,000 images are the clients'
data. It writes a line for each run to OUTPUT/runs.csv; runs that are there already are not done
again."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks.dp_runs import fill, first_images, of_dp
from pfedlora_flwr.features.dp.accountant import record_noise_for
from pfedlora_flwr.models import private
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.runs.directory import RunDirectory

if TYPE_CHECKING:
    from pfedlora_flwr.api.results import Run

IMAGES = 20_000
KEYS: dict[str, Any] = {
    "model-input": 96,
    "train": "head",
    "normalise": "model",
    "method": "pfedlora_plus",
    "adapter.predict": "sum",
    "adapter.rows": "samples",
    "adapter.hidden-dim": 16,
    "clients": 100,
    "participation": 0.5,
    "partition.kind": "dirichlet",
    "partition.alpha": 0.3,
    "partition.samples-per-client": 30,
    "rounds": 10,
    "local-epochs": 5,
    "batch-size": 16,
    "lr": 0.003,
    "evaluate-initial": False,
    "evaluate-every": 10,
}
_RECORDS = {"dp.level": "record", "dp.clip": 1.0}
CELLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "start": {"sharing": "start"},
    "eps8": _RECORDS | {"dp.epsilon": 8},
    "eps2": _RECORDS | {"dp.epsilon": 2},
    "inf": _RECORDS | {"dp.noise": 0},
    "none": {"sharing": "none"},
    "noise8": _RECORDS | {"dp.epsilon": 8},
}
"""start: no adapter. noise8: as eps8, and no record has a gradient."""
_SUM = private.clipped_sum


def no_gradients(adapter: Adapter, r: Tensor, labels: Tensor, clip: float) -> dict[str, Tensor]:
    """In the place of a step's sum of gradients: what noise alone gives."""
    return {name: 0 * total for name, total in _SUM(adapter, r, labels, clip).items()}


def within(cell: str) -> AbstractContextManager[object]:
    """What a cell's run stands in: in noise8 no record has a gradient."""
    sums = no_gradients if cell == "noise8" else _SUM
    return mock.patch.object(private, "clipped_sum", sums)


def told(run: Run) -> dict[str, object]:
    """What a line has: the validation accuracy after the last round, and z of a client that took
    part most often."""
    directory = RunDirectory(run.path)
    e, most = directory.experiment(), of_dp(run, "participations_max")
    samples, z = e.partition.samples_per_client, of_dp(run, "noise")
    if e.dp.epsilon is not None and samples is not None:
        parts = private.parts_of(samples, e.batch_size)
        z = record_noise_for(e.dp.epsilon, parts, most * parts * e.local_epochs, e.dp.delta)
    validation = directory.rounds()[-1]["validation_accuracy"]
    return {"validation": f"{validation:.6f}", "noise": z, "participations_max": most}


def main() -> None:
    cli = argparse.ArgumentParser()
    for name in ("cifar10", "weights", "output"):
        cli.add_argument(name, type=Path)
    cli.add_argument("--seeds", type=int, default=3)
    asked = cli.parse_args()

    torch.set_num_threads(1)
    output = asked.output.resolve()
    data = output / "images.npz"
    if not data.exists():
        output.mkdir(parents=True, exist_ok=True)
        pixels, labels = first_images(asked.cifar10, IMAGES)
        np.savez(data, images=pixels, labels=labels)
    model = f"timm:tf_efficientnet_lite0:weights={asked.weights.resolve()}"
    base = KEYS | {"dataset": f"npz:{data}", "models": model}
    cells = {cell: base | keys for cell, keys in CELLS.items()}
    fill(output, cells, asked.seeds, told, within)


if __name__ == "__main__":
    main()
