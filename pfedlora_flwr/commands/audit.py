"""`pfedlora audit`: what the uploads of runs, and their sum, reveal about single clients."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pfedlora_flwr.audit.audit import audit
from pfedlora_flwr.audit.canaries import RARE
from pfedlora_flwr.errors import UserError
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
        if line := _broken(found[-1][1]):
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
    if line := _beside(found):
        out.print(line, soft_wrap=True)
    for note in found["notes"]:
        out.print(f"note: {note}", soft_wrap=True)


def _beside(found: Audit) -> str:
    """ε from both sides; empty if there is none."""
    if (dp := found.get("dp")) is None:
        return ""
    upper = "infinite" if dp["epsilon"] is None else f"at most {dp['epsilon']:.4g}"
    if dp["level"] == "user":
        what = "a client in one noised sum"
    else:
        what = f"a record in one visit of {dp['steps']} steps"
    told = (
        f"dp: ε of {what}: {upper} by the accountant, at least {dp['lower']:.4g} by canaries"
        f" ({dp['trials']} trials, 99.9 % confidence; so many show {dp['ceiling']:.4g} at most)"
    )
    if dp["epsilon"] is None or dp["ceiling"] <= dp["epsilon"]:
        told += ": they can show no fault"
    if dp["deviation"] is not None:
        told += f"; the drawn noise is {dp['deviation']:.4g} of what the keys say"
        told += f" (standard deviation, {dp['numbers']} numbers)"
    return told


def _broken(found: Audit) -> str:
    """A line where canaries show more than ε, or less noise was drawn; otherwise empty."""
    dp = found.get("dp")
    if dp is None or dp["epsilon"] is None:
        return ""
    told = []
    if dp["lower"] > dp["epsilon"]:
        told.append(
            f"canaries show ε ≥ {dp['lower']:.4g}, and the accountant says {dp['epsilon']:.4g}"
        )
    if dp["chance"] < RARE and dp["deviation"] is not None:
        told.append(
            f"the drawn noise is {dp['deviation']:.4g} of its standard deviation by the keys, which"
            f" honest noise is with a probability below {RARE:g}"
        )
    return f"{'; '.join(told)}: the noise is not what the keys say" if told else ""


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
