"""What clients that lie cost the honest ones, by method, rule and lie: rows for
docs/results/attacks.

    python -m benchmarks.attacks ROWS.csv [--seeds 3] [--methods fedavg,pfedlora] [KEY=VALUE ...]

The embedded digits, a linear layer and a head. The first clients lie (`LIES` of
tests/federation/malice.py): they train, and send something else, through the whole path of a
message. A line of ROWS.csv that is there already is not done again."""

from __future__ import annotations

import argparse
import csv
import logging
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pfedlora_flwr.config import parse_overrides, run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.runs.directory import RunDirectory
from tests.federation.malice import FLIPPED, LAZY, LIES, simulate

METHODS = ("fedavg", "pfedlora", "pfedlora_plus", "fedproto")
RATES = {"fedproto": 0.003}
"""Where it does not learn at the default one."""
BOUND = "mean, max-weight 3"
RULES: dict[str, dict[str, object]] = {
    "mean": {},
    BOUND: {"max-weight": 3},
    "median": {"aggregation": "median"},
    "trimmed mean": {"aggregation": "trimmed-mean"},
    "krum": {"aggregation": "krum"},
}
CLAIM = "turned, a million samples"
ATTACKS = ("turned", "turned, nine times", "turned, ninety times", CLAIM, FLIPPED)
KEYS: dict[str, Any] = {
    "rounds": 6,
    "local-epochs": 2,
    "models": "tests.methods.narrow:Narrow",
    "evaluate-every": 6,
}
TEN = KEYS | {"clients": 10, "min-success": 0.8}
FIVE = KEYS | {"clients": 5, "min-success": 0.4}
DIRICHLET = {"partition.kind": "dirichlet", "partition.alpha": 0.5}
CELL = ("method", "rule", "lie", "liars", "clients", "seed")
COLUMNS = (*CELL, "accuracies", "refused_honest", "refused_liars", "ended", "seconds")
"""accuracies: of each client after its last training, – of one that has none."""


def cells(methods: list[str], seeds: int) -> Iterator[tuple[str, str, str, int, int, int]]:
    """The values of CELL. Where a rule differs from the mean by its bound on n_k alone, it is tried
    with that lie alone."""
    for seed in range(seeds):
        yield "standalone", "mean", "", 0, 10, seed
        for method in methods:
            for rule in RULES:
                yield method, rule, "", 0, 10, seed
                for liars in (1, 2):
                    for lie in (CLAIM,) if rule == BOUND else ATTACKS:
                        yield method, rule, lie, liars, 10, seed
                if rule != BOUND:
                    yield method, rule, "", 0, 5, seed
                    yield method, rule, LAZY, 3, 5, seed


def keys_of(method: str, rule: str, clients: int, seed: int) -> dict[str, Any]:
    """F is two of ten, and one of five, whatever the number of liars."""
    keys = (TEN if clients == 10 else FIVE) | DIRICHLET | RULES[rule]
    if "aggregation" in keys:
        keys["aggregation.liars"] = 2 if clients == 10 else 1
    if method in RATES:
        keys["lr"] = RATES[method]
    return keys | {"method": method, "seed": seed}


def told(lie: str, liars: int, keys: dict[str, Any]) -> tuple[str, int, int, str]:
    """From `accuracies` to `ended`."""
    with tempfile.TemporaryDirectory() as folder:
        ended = ""
        try:
            simulate(Path(folder), dict.fromkeys(range(liars), lie), **keys)
        except (UserError, RuntimeError) as error:
            ended = " ".join(str(error).split())[:200]
        rows: list[Any] = [*RunDirectory(Path(folder) / "run").visits()]
    last = {
        r["client"]: f"{r['accuracy']:.4f}"
        for r in rows
        if r["round"] == keys["rounds"] and r["status"] == "ok"
    }
    refused = [r["client"] for r in rows if r["status"] != "ok"]
    honest = sum(client >= liars for client in refused)
    accuracies = " ".join(last.get(client, "–") for client in range(keys["clients"]))
    return accuracies, honest, len(refused) - honest, ended


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("rows", type=Path)
    cli.add_argument("--seeds", type=int, default=3)
    cli.add_argument("--methods", default=",".join(METHODS))
    asked, overrides = cli.parse_known_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    assert {*ATTACKS, LAZY} <= {*LIES, FLIPPED}
    table: Path = asked.rows
    done = list(csv.DictReader(table.open(encoding="utf-8"))) if table.exists() else []
    there = {tuple(row[name] for name in CELL) for row in done}
    for cell in cells(asked.methods.split(","), asked.seeds):
        if tuple(map(str, cell)) in there:
            continue
        method, rule, lie, liars, clients, seed = cell
        keys = keys_of(method, rule, clients, seed) | parse_overrides(overrides)
        try:
            run_config(keys)
        except UserError:  # a rule that the method refuses
            continue
        began = time.process_time()
        row = [*cell, *told(lie, liars, keys), f"{time.process_time() - began:.1f}"]
        with table.open("a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if not file.tell():
                writer.writerow(COLUMNS)
            writer.writerow(row)
        print(time.strftime("%T"), *row, flush=True)


if __name__ == "__main__":
    main()
