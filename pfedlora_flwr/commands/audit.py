"""`pfedlora audit`: what the uploads of runs, and their sum, reveal about single clients."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pfedlora_flwr.audit.audit import audit
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features import audits
from pfedlora_flwr.files import check_folder
from pfedlora_flwr.ops.load_models import note_code
from pfedlora_flwr.runs.audits import Attack, Audit
from pfedlora_flwr.runs.directory import RunDirectory, find_runs


def audit_all(paths: Iterable[Path], out: Console, err: Console, *, as_json: bool) -> int:
    """Audits every run of the paths, each a run or a folder of runs; the exit code: 0, 1 where some
    could not be audited, or the noise is not what the keys say.

    Raises UserError if the only run could not, or there is none.
    """
    runs = [run for path in paths for run in _runs(path)]
    found: list[tuple[RunDirectory, Audit]] = []
    broken = False
    for run in runs:
        try:
            note_code(run.path, err.print)
            found.append((run, audit(run)))
        except UserError as error:
            if len(runs) == 1:
                raise
            err.print(f"error: {error}")
            continue
        if not as_json:
            show(*found[-1], out)
        for line in audits.faults(found[-1][1]):
            broken = True
            err.print(f"error: {run.path}: {line}", soft_wrap=True)
    if as_json:
        print(json.dumps([told for _, told in found] if len(runs) > 1 else found[0][1], indent=1))
    return 0 if len(found) == len(runs) and not broken else 1


def show(run: RunDirectory, found: Audit, out: Console) -> None:
    """The attacks that tell most, and what could not be audited."""
    table = Table()
    for name in ("told", "by", "attack", "AUC", "95 % interval", "TPR, 1 % FPR"):
        table.add_column(name, justify="left" if name in ("told", "by", "attack") else "right")
    for what, source, attack, measured in _lines(found):
        low, high = measured["low"], measured["high"]
        interval = "–" if low is None else f"{low:.2f} – {high:.2f}"
        auc, rate = f"{measured['auc']:.3f}", f"{measured['tpr_at_1pct']:.3f}"
        table.add_row(what, source, attack, auc, interval, rate)
    last = found["rounds"][-1]
    if len(found["rounds"]) == 1:
        rounds = f"round {last}"
    else:
        rounds = f"{len(found['rounds'])} rounds, up to {last}"
    out.print(
        f"{run.path}: {found['method']}, {found['clients']} clients, {rounds}", soft_wrap=True
    )
    if table.row_count:
        out.print(table)
    for line in audits.lines(found):
        out.print(line, soft_wrap=True)
    for note in found["notes"]:
        out.print(f"note: {note}", soft_wrap=True)


def _lines(found: Audit) -> Iterator[tuple[str, str, str, Attack]]:
    classes, membership = found["classes"], found["membership"]
    for source, attack in (("upload", classes["upload"]), ("sum", classes["sum"])):
        if attack:
            yield "classes", source, attack["attack"], attack
    if membership:
        yield "samples", membership["of"], membership["attack"], membership
        if bound := membership["bound"]:
            yield "samples", membership["of"], f"{bound['attack']}, its own encoder", bound


def _runs(path: Path) -> list[RunDirectory]:
    check_folder(path)
    found = find_runs(path)
    if not found:
        raise UserError(f"{path} holds no run")
    return found
