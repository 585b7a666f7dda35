"""A run's audit: what its server, or anyone who reads its messages, can learn about single clients.
docs/audit.md explains it."""

from __future__ import annotations

import json
from typing import cast

import torch

from pfedlora_flwr.audit.classes import audit_classes
from pfedlora_flwr.audit.measure import RESOLVED
from pfedlora_flwr.audit.membership import NO_PREDICTION, audit_membership
from pfedlora_flwr.audit.seen import Seen
from pfedlora_flwr.errors import UserError, user_code
from pfedlora_flwr.features import audits
from pfedlora_flwr.features.audit.rules import FILE
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.runs.audits import Audit, ClassAudit, MembershipAudit
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.layout import FORMAT


def audit(run: RunDirectory) -> Audit:
    """Attacks what is left of the run's messages, and writes `audit.json`. Raises UserError if
    there is nothing to attack."""
    torch.set_num_threads(1)  # as in the run
    seen = Seen(run)
    e, notes, of_samples = seen.experiment, list[str](), list[str]()
    with user_code("method", e.method):
        membership = audit_membership(seen, of_samples)
        classes = audit_classes(seen)
        parts = audits.of_run(seen, notes)
    if seen.source == "sum":
        why = "single ones were not kept (audit.uploads)"
        notes.insert(0, f"only the sum of the last round's uploads is audited: {why}")
    if e.noises_rounds and seen.source == "uploads":
        notes.append("uploads are as the server kept them, without noise, which ε does not cover")
    notes += seen.setup.shown
    if classes["layer"] is None:
        notes.append("no layer by class: nothing that is sent has a row a class")
    elif not classes["attacks"]:
        notes.append("every client holds every class: there is nothing to tell")
    notes += of_samples
    if few := _few(classes, membership):
        notes.append(
            f"with fewer than {RESOLVED} negatives TPR at 1 % FPR is the TPR at no false positive:"
            f" {', '.join(f'{name} has {count}' for name, count in few.items())}"
        )
    found: Audit = {
        "format": FORMAT,
        "method": e.method,
        "source": seen.source,
        "rounds": seen.numbers,
        "clients": len({client for number in seen.numbers for client in seen.clients(number)}),
        "classes": classes,
        "membership": membership,
        "notes": notes,
    }
    found = cast(Audit, {**found, **parts})
    if seen.source == "sum" and classes["layer"] is None and NO_PREDICTION in of_samples:
        raise UserError(
            f"{run.path} kept no uploads, and in what its server keeps for method {e.method} there"
            " is nothing to audit: run it with audit.uploads=true"
        )
    write_atomically(run.path / FILE, (json.dumps(found, indent=2) + "\n").encode())
    return found


def _few(classes: ClassAudit, membership: MembershipAudit | None) -> dict[str, int]:
    """The attacks with too few negatives for one percent of them to be any, and how many."""
    best = {"classes, upload": classes["upload"], "classes, sum": classes["sum"]}
    best["samples"] = membership
    counts = {name: attack["negatives"] for name, attack in best.items() if attack}
    return {name: count for name, count in counts.items() if count < RESOLVED}
