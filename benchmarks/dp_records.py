"""Accuracy under differential privacy of single records, beside its controls.

    pfedlora weights timm:tf_efficientnet_lite0 --output lite0.safetensors
    python -m benchmarks.dp_records CIFAR10 lite0.safetensors OUTPUT [--seeds 3]

CIFAR10 is the folder of the dataset's `train.parquet`, whose first 4,000 images are the clients'
data. It writes a line for each run to OUTPUT/runs.csv; runs that are there already are not done
again."""

from __future__ import annotations

import argparse
import csv
import io
import os
import resource
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

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
COLUMNS = ("cell", "seed", "accuracy", "epsilon", "seconds", "load")
_SUM = private.clipped_sum


def no_gradients(adapter: Adapter, r: Tensor, labels: Tensor, clip: float) -> dict[str, Tensor]:
    """In the place of a step's sum of gradients: what noise alone gives."""
    return {name: 0 * total for name, total in _SUM(adapter, r, labels, clip).items()}


def images(folder: Path, file: Path) -> None:
    """Writes the clients' data."""
    from PIL import Image
    from pyarrow import parquet

    table = parquet.read_table(folder / "train.parquet").slice(0, IMAGES)
    image = next(name for name in table.column_names if "im" in name)
    label = next(name for name in table.column_names if "label" in name)
    pixels = [
        np.asarray(Image.open(io.BytesIO(row["bytes"])).convert("RGB"))
        for row in table[image].to_pylist()
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, images=np.stack(pixels), labels=np.array(table[label].to_pylist()))


def main() -> None:
    cli = argparse.ArgumentParser()
    for name in ("cifar10", "weights", "output"):
        cli.add_argument(name, type=Path)
    cli.add_argument("--seeds", type=int, default=3)
    asked = cli.parse_args()
    import pfedlora_flwr

    torch.set_num_threads(1)
    output = asked.output.resolve()
    data, table = output / "images.npz", output / "runs.csv"
    if not data.exists():
        images(asked.cifar10, data)
    model = f"timm:tf_efficientnet_lite0:weights={asked.weights.resolve()}"
    base = KEYS | {"dataset": f"npz:{data}", "models": model}
    done = list(csv.DictReader(table.open())) if table.exists() else []
    for seed in range(asked.seeds):
        for cell, keys in CELLS.items():
            if any((row["cell"], row["seed"]) == (cell, str(seed)) for row in done):
                continue
            began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            given: dict[str, Any] = base | keys | {"seed": seed, "overwrite": True}
            sums = no_gradients if cell == "noise8" else _SUM
            with mock.patch.object(private, "clipped_sum", sums):
                folder = output / f"{cell}-{seed}"
                found = pfedlora_flwr.run(output=folder, progress=False, **given).result
            row = {
                "cell": cell,
                "seed": seed,
                "accuracy": f"{found['accuracy']['final']:.6f}",
                "epsilon": (found["privacy"]["dp"] or {}).get("epsilon") or "",
                "seconds": f"{resource.getrusage(resource.RUSAGE_SELF).ru_utime - began:.1f}",
                "load": f"{os.getloadavg()[0]:.1f}",
            }
            with table.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                if not file.tell():
                    writer.writeheader()
                writer.writerow(row)
            print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
