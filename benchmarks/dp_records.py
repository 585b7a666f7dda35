"""Accuracy under differential privacy of single records, beside its controls.

    pfedlora weights timm:tf_efficientnet_lite0 --output lite0.safetensors
    python -m benchmarks.dp_records CIFAR10 lite0.safetensors OUTPUT [--seeds 3]

CIFAR10 is the folder of the dataset's `train.parquet`, whose first 4,000 images are the clients'
data. It writes a line for each run to OUTPUT/runs.csv; runs that are there already are not done
again."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks.dp_runs import fill, first_images
from pfedlora_flwr.models import private
from pfedlora_flwr.models.adapter import Adapter

IMAGES = 4000
KEYS: dict[str, Any] = {
    "model-input": 64,
    "train": "head",
    "normalise": "model",
    "representation": "pretrained-logits",
    "method": "pfedlora_plus",
    "adapter.predict": "sum",
    "adapter.rows": "samples",
    "adapter.hidden-dim": 16,
    "clients": 20,
    "partition.kind": "dirichlet",
    "partition.alpha": 0.3,
    "rounds": 10,
    "local-epochs": 2,
    "batch-size": 32,
    "lr": 0.003,
    "evaluate-initial": False,
    "evaluate-every": 10,
}
_RECORDS = {"dp.level": "record", "dp.clip": 1.0}
CELLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "start": {"sharing": "start"},
    "inf": _RECORDS | {"dp.noise": 0},
    "eps8": _RECORDS | {"dp.epsilon": 8},
    "eps2": _RECORDS | {"dp.epsilon": 2},
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
    fill(output, {cell: base | keys for cell, keys in CELLS.items()}, asked.seeds, within=within)


if __name__ == "__main__":
    main()
