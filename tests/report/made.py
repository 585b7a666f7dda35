"""Runs made by hand: round numbers, so that a table's figures can be computed with pencil and
paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pfedlora_flwr.config import run_config
from pfedlora_flwr.data.local import OWN
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.models.spec import specs_of
from pfedlora_flwr.runs.directory import RunDirectory

SCORES = {"balanced_accuracy": 0.9, "macro_f1": 0.8}
"""Of what the accuracy is."""


def make_run(
    folder: Path,
    accuracies: list[float] | float,
    clients: list[float] | int = 1,
    *,
    up: int = 10,
    flops: int = 1000,
    validation: list[float] | None = None,
    sampled: list[float] | None = None,
    partition: str = "",
    **keys: Any,
) -> None:
    """A completed run with `accuracies` after rounds 0, 1, … (validation the same, if not given)
    and the clients' accuracies at the end. One number: after round 1, and 0.1 before; so many
    clients: all with the last accuracy.

    sampled: the mean of each round's visits; of none, if not given.
    partition: its fingerprint; the Experiment's, if not given. Every client is sampled in every
    round; a client sends `up` parameters of 4 bytes, receives twice as many, and computes `flops`.
    """
    if isinstance(accuracies, float):
        accuracies = [0.1, accuracies]
    if isinstance(clients, int):
        clients = [accuracies[-1]] * clients
    flat = {"clients": len(clients), "rounds": len(accuracies) - 1, "partition.kind": "iid"} | {
        k.replace("_", "-"): v for k, v in keys.items()
    }
    config = run_config(flat)
    e = config.experiment
    folder.mkdir(parents=True)
    RunDirectory(folder).write_config(config)
    n = len(clients)
    rows = []
    validation = validation or accuracies
    for round, accuracy in enumerate(accuracies):
        k = n if round else 0
        sent = {
            "parameters_up": k * up,
            "parameters_down": 2 * k * up,
            "bytes_up": 4 * k * up,
            "bytes_down": 8 * k * up,
        }
        admitted = list(range(k))
        row = {
            "round": round,
            "sampled": admitted,
            "admitted": admitted,
            "accuracy": accuracy,
            "validation_accuracy": validation[round],
            "evaluated": n,
        }
        rows.append(
            row | sent | {"flops": k * flops, "seconds": 1.0, "other_accuracies": {}, "loss": 1.0}
        )
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "clients.jsonl").touch()
    best = max(range(len(accuracies)), key=lambda i: (validation[i], -i))
    names = ("parameters_up", "parameters_down", "bytes_up", "bytes_down")
    result = {
        "status": "completed",
        "error": None,
        "method": e.method,
        "fingerprint": e.fingerprint(),
        "clients": e.clients,
        "rounds": e.rounds,
        "accuracy": {
            "final": accuracies[-1],
            "at_best_validation": accuracies[best],
            "best_validation_round": best,
            "max_test": max(accuracies),
            "std": 0.0,
            "evaluated": n,
            "worst": min(clients),
            "other": {},
            **({"sampled_last": sampled[-1], "sampled_highest": max(sampled)} if sampled else {}),
        },
        **{
            name: {"final": x * accuracies[-1], "at_best_validation": x * accuracies[best]}
            for name, x in SCORES.items()
        },
        "per_client": {
            str(k): {
                "model": str(specs_of(e)[k % len(specs_of(e))]),
                "accuracy": accuracy,
                "test": 10,
                "samples": 80,
                "last_round": e.rounds,
            }
            for k, accuracy in enumerate(clients)
        },
        "communication": {name: sum(row[name] for row in rows) for name in names},
        "flops": sum(row["flops"] for row in rows),
        "operations": {"clients": sum(row["flops"] for row in rows), "server": 0},
        "seconds": {"total": float(len(rows) - 1)},
        "partition": partition or DataSetup(e).partition.fingerprint,
    }
    if partition == OWN:
        told = {"sites": n, "kind": "vectors", "shape": [4], "classes": 3, "samples": None}
        result |= {"own_data": told, "dataset": f"own data of {n} sites"}
    (folder / "result.json").write_text(json.dumps(result))
