"""Every method on every kind of input: what runs, what is refused and with which line, and how
accurate it is beside Standalone.

    python -m benchmarks.kinds FOLDER [--jobs J]

Trains in FOLDER, one run a method and kind, by the local engine; a run that is there is not done
again. Writes FOLDER/kinds.csv and prints a table. The windows and the table are the examples':
their scripts write them to FOLDER first."""

from __future__ import annotations

import argparse
import csv
import os
import runpy
import time
from pathlib import Path
from typing import Any

import numpy as np

from pfedlora_flwr.config import located, run_config
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.launch.checks import preflight
from pfedlora_flwr.launch.worker import Worker, shares
from pfedlora_flwr.methods import registry
from pfedlora_flwr.runs.begin import continued

ROOT = Path(__file__).resolve().parent.parent
ADAMW = {"optimizer": "adamw", "lr": 0.003, "batch-size": 16}
KINDS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits", "clients": 10, "rounds": 12, "batch-size": 16},
    "64 pixels": {
        **ADAMW,
        "dataset": "digits",
        "image-size": 64,
        "lr": 0.001,
        "models": "timm:resnet10t,timm:mobilenetv3_small_050,cnn1",
        "clients": 6,
        "partition.classes-per-client": 5,
        "rounds": 5,
    },
    "sensors": {
        **ADAMW,
        "dataset": "npz:windows.npz",
        "clients": 15,
        "partition.kind": "natural",
        "rounds": 8,
    },
    "table": {
        **ADAMW,
        "dataset": "csv:tumours.csv",
        "data.label-column": "diagnosis",
        "data.client-column": "site",
        "clients": 8,
        "partition.kind": "natural",
        "batch-size": 8,
        "rounds": 10,
    },
}
HOMOGENEOUS = {"64 pixels": {"models": "timm:mobilenetv3_small_050"}}
"""What FedAvg has, which needs one model for everyone."""

_METHODS = (
    "standalone",
    *(
        name
        for name in registry.NAMES
        if name != "standalone" and not registry.find(name).shares_lora
    ),
)
"""All that need no pretrained model."""


def cell(kind: str, method: str) -> RunConfig:
    """A cell of the table. Raises UserError where it is refused."""
    keys = KINDS[kind] | (
        {"setting": "homogeneous"} | HOMOGENEOUS.get(kind, {})
        if registry.find(method).one_model
        else {}
    )
    config = run_config(keys | {"method": method})
    return located(config, Path("runs") / kind.replace(" ", "-") / method)


def majority(e: Experiment) -> float:
    """The mean over the clients of the test accuracy of naming the class that is most frequent in
    their training part."""
    setup = DataSetup(e)
    dataset, partition = setup.dataset, setup.partition
    labels = np.asarray(dataset.labels)
    return float(
        np.mean(
            [
                (labels[own.test] == np.bincount(labels[own.train]).argmax()).mean()
                for own in partition.clients
            ]
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(asked.folder)
    for script in ("sensors/make_windows.py", "table/make_table.py"):
        runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    said, left = {}, []
    for kind in KINDS:
        for method in _METHODS:
            try:
                config = cell(kind, method)
                preflight(config)
                left.append((kind, method, config))
            except UserError as error:
                said[kind, method] = str(error)
    done = run([config for _, _, config in left], asked.jobs)
    rows = []
    for kind, method, config in left:
        result = done[config.execution.output]
        final = (
            result["accuracy"]["at_best_validation"]
            if result["status"] == "completed"
            else result["error"]
        )
        rows.append(
            {
                "kind": kind,
                "method": method,
                "accuracy": final,
                "majority": majority(config.experiment),
                "refused": "",
            }
        )
    rows += [
        {"kind": k, "method": m, "accuracy": "", "majority": "", "refused": line}
        for (k, m), line in said.items()
    ]
    with Path("kinds.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    show(rows)


def run(configs: list[RunConfig], jobs: int) -> dict[str, Any]:
    """The results by output, `jobs` runs at once."""
    done: dict[str, Any] = {}
    going: dict[Worker, RunConfig] = {}
    waiting, free = list(configs), [Worker(share) for share in shares(jobs)]
    while waiting or going:
        while waiting and free:
            worker, config = free.pop(), waiting.pop(0)
            worker.start(continued(config), "local")
            going[worker] = config
        time.sleep(0.5)
        for worker in [worker for worker in going if worker.ended]:
            output = going.pop(worker).execution.output
            free.append(worker)
            done[output] = worker.result()
            print(
                f"{len(done)} of {len(configs)}: {output}: {done[output]['status']}",
                flush=True,
            )
    for worker in free:
        worker.close()
    return done


def show(rows: list[dict[str, Any]]) -> None:
    """The table, in Markdown: accuracies in %, those within ten points of the majority class
    marked."""
    by = {(row["kind"], row["method"]): row for row in rows}
    print("| method | " + " | ".join(KINDS) + " |\n|---" + "|---" * len(KINDS) + "|")
    for method in _METHODS:
        print(
            f"| {registry.title(method)} | "
            + " | ".join(_cell(by[kind, method]) for kind in KINDS)
            + " |"
        )
    majorities = {row["kind"]: row["majority"] for row in rows if row["majority"]}
    print(
        "| majority class | "
        + " | ".join(f"{100 * majorities[kind]:.1f}" for kind in KINDS)
        + " |\n"
    )
    for row in rows:
        if row["refused"]:
            print(f"{row['method']} on {row['kind']}: {row['refused']}")


def _cell(row: dict[str, Any]) -> str:
    if row["refused"]:
        return "refused"
    if isinstance(row["accuracy"], str):
        return f"failed: {row['accuracy']}"
    return f"{100 * row['accuracy']:.1f}" + (
        "" if row["accuracy"] >= row["majority"] + 0.1 else " (!)"
    )


if __name__ == "__main__":
    main()
