"""What the features add to an audit of a run, or of a site's own visits."""

from __future__ import annotations

from typing import Any

from pfedlora_flwr.audit.seen import Seen
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.dp import audit as noise
from pfedlora_flwr.features.masks import record as masks
from pfedlora_flwr.runs.audits import Audit

at_site, statement, leaves = noise.at_site, noise.statement, masks.leaves


def of_run(seen: Seen, notes: list[str]) -> dict[str, Any]:
    """Their parts of `audit.json`, by key. notes: gets lines that say what is missing."""
    dp = noise.audit_dp(seen, notes)
    return {} if dp is None else {"dp": dp}


def lines(found: Audit) -> list[str]:
    """What is said beside its table."""
    return [*filter(None, [noise.line(found)])]


def faults(found: Audit) -> list[str]:
    """What is not as the keys say, a line each."""
    return [*filter(None, [noise.fault(found)])]


def protections(e: Experiment) -> dict[str, Any]:
    """What protects what a site sends, by the keys of its own audit."""
    return {"masked": bool(e.hides_uploads), "dp": e.dp.level if e.noises else None}
