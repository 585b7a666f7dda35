"""What the studies of differential privacy have in common: images from a dataset's file, and a
table of runs that goes on where it was left."""

from __future__ import annotations

import csv
import io
import os
import resource
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pfedlora_flwr.api.results import Run


def first_images(folder: Path, count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """The first images of the folder's `train.parquet`, uint8 [count, H, W, 3], and labels."""
    from PIL import Image
    from pyarrow import parquet

    table = parquet.read_table(folder / "train.parquet").slice(0, count)
    image = next(name for name in table.column_names if "im" in name)
    label = next(name for name in table.column_names if "label" in name)
    pixels = [
        np.asarray(Image.open(io.BytesIO(row["bytes"])).convert("RGB"))
        for row in table[image].to_pylist()
    ]
    return np.stack(pixels), np.array(table[label].to_pylist())


def fill(
    output: Path,
    cells: Mapping[str, Mapping[str, Any]],
    seeds: int,
    told: Callable[[Run], dict[str, object]],
    within: Callable[[str], AbstractContextManager[object]] = lambda cell: nullcontext(),
) -> None:
    """Runs each cell's keys with each seed, and writes a line for each to OUTPUT/runs.csv; runs
    that are there already are not done again.

    told: what a line has of a run beside accuracy and ε. within: what a cell's run stands in."""
    import pfedlora_flwr

    table = output / "runs.csv"
    done = list(csv.DictReader(table.open())) if table.exists() else []
    for seed in range(seeds):
        for cell, keys in cells.items():
            if any((row["cell"], row["seed"]) == (cell, str(seed)) for row in done):
                continue
            began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            given: dict[str, Any] = {**keys, "seed": seed, "overwrite": True}
            with within(cell):
                folder = output / f"{cell}-{seed}"
                run = pfedlora_flwr.run(output=folder, progress=False, **given)
            row = {
                "cell": cell,
                "seed": seed,
                "accuracy": f"{run.result['accuracy']['final']:.6f}",
                "epsilon": of_dp(run, "epsilon"),
                **told(run),
                "seconds": f"{resource.getrusage(resource.RUSAGE_SELF).ru_utime - began:.1f}",
                "load": f"{os.getloadavg()[0]:.1f}",
            }
            with table.open("a", newline="") as file:
                writer = csv.DictWriter(file, row.keys(), lineterminator="\n")
                if not file.tell():
                    writer.writeheader()
                writer.writerow(row)
            print(time.strftime("%T"), *row.values(), flush=True)


def of_dp(run: Run, name: str) -> Any:
    """A field of the run's `privacy.dp`; empty without one."""
    found = (run.result["privacy"]["dp"] or {}).get(name)
    return "" if found is None else found
