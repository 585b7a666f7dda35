"""The lines of held-out clients, and what they come to in a run's result."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.held_out.rules import FILE
from pfedlora_flwr.runs.layout import RunFiles
from pfedlora_flwr.runs.lines import read_rows, write_rows
from pfedlora_flwr.runs.rows import AdaptedRow


def lines_of(run: RunFiles) -> list[AdaptedRow]:
    """The lines of its held-out clients; empty if there are none."""
    return list(read_rows(run.path / FILE, {"round", "client", "accuracy"}))


def write(run: RunFiles, e: Experiment, round: int, rows: Iterable[AdaptedRow]) -> None:
    """Writes the lines of a round's held-out clients behind those of earlier rounds, all at once.
    Those of a round that was the last one and no longer is are dropped."""
    before = [row for row in lines_of(run) if row["round"] < round and adapts(e, row["round"])]
    write_rows(run.path / FILE, [*before, *rows])


def adapts(e: Experiment, round: int) -> bool:
    """Whether the held-out clients are adapted after this round."""
    every = e.held_out.every and round % e.held_out.every == 0
    return bool(e.held_out.clients and round and (every or round == e.rounds))


def add_measures(result: Any, e: Experiment, run: RunFiles) -> None:
    """Adds what the lines come to."""
    if not e.held_out.clients:
        return
    means, rows = list[dict[str, Any]](), list[Any](lines_of(run))
    for round, asked in dict.fromkeys((row["round"], row["asked"]) for row in rows):
        own = [row for row in rows if (row["round"], row["asked"]) == (round, asked)]
        averaged, added = ("samples", "accuracy", "alone_accuracy"), ("flops", "alone_flops")
        mean = {name: fmean(row[name] for row in own) for name in averaged}
        total = {name: sum(row[name] for row in own) for name in added}
        means.append({"round": round, "asked": asked, "clients": len(own)} | mean | total)
    means.sort(key=lambda mean: (mean["round"], mean["samples"]))
    clients = [*e.held_out_clients]
    result["held_out"] = {"clients": clients, "visits": e.held_out.rounds, "means": means}
