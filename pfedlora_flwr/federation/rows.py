"""The lines that a round writes to `rounds.jsonl` and `clients.jsonl`; `runs/rows.py` defines the
fields."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from pfedlora_flwr.federation.messages import Report
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.rows import FailedVisitRow, RoundRow, VisitRow

_REPORTED = [f.name for f in fields(Report) if f.name in VisitRow.__annotations__]
"""What goes from a client's report into its line as it is: a new measure is a field of both."""
_ABSENT = {f.name for f in fields(Report) if f.metadata.get("optional", True)}
"""What is absent from a line where the report does not tell it; other fields are null."""


def visit_rows(round: Round) -> list[VisitRow]:
    """A line for each admitted visit."""
    return [_visit_row(round, client) for client in round.visits]


def failed_visit(round: int, client: int, reason: str) -> FailedVisitRow:
    return {"round": round, "client": client, "status": "failed", "reason": reason}


def round_row(
    round: Round, state: ServerState, visits: Sequence[VisitRow], more: Mapping[str, Any]
) -> RoundRow:
    """The round's own line, from its visits' and the state after it. more: what links add."""
    laps, losses = round.clock.laps, [row["loss"] for row in visits if row["loss"] is not None]
    row: dict[str, Any] = {
        "round": round.number,
        "sampled": round.sampled,
        "admitted": list(round.visits),
        "refused": sorted(round.failures),
        **state.evaluated(),
        "loss": statistics.fmean(losses) if losses else None,
        **round.cost().as_dict(),
        "server_flops": round.server_flops,
        "seconds": sum(laps.values()),
        "server_seconds": dict(laps),
        "training_seconds": sum(row["seconds"].get("train", 0.0) for row in visits),
        "evaluation_seconds": sum(row["seconds"].get("evaluate", 0.0) for row in visits),
        "workers": len(
            {(visit.report.node, visit.report.worker) for visit in round.visits.values()}
        ),
        "ended": time.time(),
    }
    row |= more
    if round.exchanges_lora:
        row["aggregation_error"] = round.aggregation_error
    return cast(RoundRow, row)


def _visit_row(round: Round, client: int) -> VisitRow:
    visit = round.visits[client]
    row: dict[str, Any] = {name: getattr(visit.report, name) for name in _REPORTED}
    row = {name: value for name, value in row.items() if value is not None or name not in _ABSENT}
    row |= {"status": "ok", "samples": visit.samples}
    if client in round.weights:
        row["weight"] = round.weights[client]
    counts = visit.report.counts
    if counts is not None:
        row |= counts.line()
    return cast(VisitRow, row | round.cost_of(client).as_dict())
