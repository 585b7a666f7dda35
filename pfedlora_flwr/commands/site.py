"""`pfedlora site`: a site's policy, and its own log of what left it, for its operator and its data
officer. Everything is read on the node; nothing is sent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pfedlora_flwr.commands.console import PlainCommand, argument, err, flag, option, out
from pfedlora_flwr.errors import UserError, counted

if TYPE_CHECKING:
    from pfedlora_flwr.report.table import Table

site = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
STATE = argument("STATE_PATH")


@site.callback()
def about() -> None:
    """A site's own rules and its log of what left it. STATE_PATH is the state-path of its
    node-config."""


@site.command(cls=PlainCommand)
def check(file: Path = argument("FILE")) -> None:
    """Check a policy. Prints a line for each mistake, otherwise each rule with its value. The exit
    code is 2 if no node would take part under it."""
    from pfedlora_flwr.keys import said
    from pfedlora_flwr.site.policy import check_file

    policy, mistakes = check_file(file)
    for line in mistakes:
        err.print(f"error: {line}")
    if policy is None:
        raise typer.Exit(2)
    for k, value in policy.keys().values():
        mark = " " if value == k.default else "*"
        out.print(f"{mark} {said(k, value)}   ({k.meaning})", soft_wrap=True)
    out.print(f"policy {file} holds (* differs from the default); its hash is {policy.sha256}")


@site.command(cls=PlainCommand)
def log(place: Path = STATE, as_csv: bool = flag("--csv", "Write CSV, all lines.")) -> None:
    """Show what left this site and what it refused, and whether the log is as it was written."""
    table = _messages([*_log(place).lines()])
    if as_csv:
        print(table.csv(), end="")
        return
    for line in table.lines:
        out.print("  ".join(filter(None, line)), soft_wrap=True)
    out.print(f"{len(table.lines)} lines, each as it was written")


@site.command(cls=PlainCommand)
def status(place: Path = STATE) -> None:
    """Show the runs that this site took part in, what they spent, the disk and the last message."""
    facts, runs = _summary(place, [*_log(place).lines()])
    for line in runs.lines:
        out.print("  ".join(f"{n} {c}" for n, c in zip(runs.columns, line, strict=True)))
    for name, text in facts:
        out.print(f"{name}: {text}", soft_wrap=True)


@site.command(cls=PlainCommand)
def report(
    place: Path = STATE,
    output: Path = option(Path("site.html"), "FILE", "The page to write; FILE.pdf: for printing."),
    overwrite: bool = flag("--overwrite", "Replace FILE."),
) -> None:
    """Write a page for a data officer: the runs, what left, what was refused and why."""
    from pfedlora_flwr.files import check_replaceable, write_atomically
    from pfedlora_flwr.report.page import document, listed
    from pfedlora_flwr.report.pdf import pdf

    check_replaceable(output, overwrite=overwrite)
    lines = [*_log(place).lines()]
    facts, runs = _summary(place, lines)
    refused = _messages([line for line in lines if "refused" in line], "What was refused, and why")
    title, measured = "What left this site", "What uploads and models reveal"
    tables = [table for table in (runs, refused, _messages(lines)) if table.rows]
    told = (
        f"{counted(len(lines) - len(refused.rows), 'message')} left this site,"
        f" {len(refused.rows)} {'was' if len(refused.rows) == 1 else 'were'} refused. The log is as"
        " it was written."
    )
    notes = ["The log holds no values: of each message kinds, shapes, bytes, a hash."]
    lists = [("", facts, notes), *((measured, *one) for one in _audited(place.expanduser()))]
    if output.suffix == ".pdf":
        texts = [(h, [*(f"{n}: {text}" for n, text in of), *more]) for h, of, more in lists]
        made = pdf(title, [("", [told]), *texts, *((table.title, table) for table in tables)])
    else:
        body = [
            f'<h1>{title}</h1><div class="conclusion"><p>{told}</p></div>',
            *(f"{h and f'<h2>{h}</h2>'}{listed(of, more)}" for h, of, more in lists),
            *(f"<h2>{table.title}</h2>{table.html()}" for table in tables),
        ]
        made = document(title, body).encode()
    write_atomically(output, made)
    out.print(f"the page is {output}", soft_wrap=True)


@site.command(cls=PlainCommand)
def audit(
    place: Path = STATE,
    client: int = option(-1, "K", "The client, where there are several."),
    shadows: int = option(0, "N", "Shadow models to train, each as long as a visit."),
    as_json: bool = flag("--json", "Write JSON."),
) -> None:
    """Measure what this site's own uploads and its personal model tell, for the question whether a
    model may leave. STATE_PATH may be a run's folder in it. Nothing is sent."""
    import json

    from pfedlora_flwr.ops.site_audit import site_audit, statement

    found = site_audit(place.expanduser(), None if client < 0 else client, shadows)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for name, text in (*statement(found), *(("note", note) for note in found["notes"])):
        out.print(f"{name}: {text}", soft_wrap=True)


def _audited(folder: Path) -> Iterator[tuple[list[tuple[str, str]], list[str]]]:
    """The statements of this site's audits, and their notes."""
    import json

    from pfedlora_flwr.ops.site_audit import FILE, statement

    for path in sorted(folder.glob(f"*/*/{FILE}")):
        found = json.loads(path.read_text())
        yield [*statement(found)], found["notes"]


def _log(place: Path) -> Any:
    from pfedlora_flwr.site.log import Log

    found = Log(place.expanduser())
    if not found.path.is_file():
        raise UserError(f"{place} holds no egress.jsonl; give the state-path of the node-config")
    return found


def _messages(lines: list[dict[str, Any]], title: str = "All messages") -> Table:
    """A row for each line of the log."""
    from pfedlora_flwr.report.table import Table
    from pfedlora_flwr.report.words import size

    def row(line: Mapping[str, Any]) -> dict[str, str]:
        arrays, fields = line.get("arrays", ()), line.get("fields", ())
        return {
            "time": _clock(line["time"]),
            "run": str(line["run"]),
            "round": line["round"],
            "asked": line["kind"],
            "method": line.get("method", ""),
            "left": f"{len(arrays)} arrays, {len(fields)} fields" if "bytes" in line else "nothing",
            "bytes": size(line.get("bytes", 0)),
            "under": ", ".join(line.get("protection", ())) or "no protection",
            "refused": line.get("refused", ""),
            "policy": (line.get("policy") or "none")[:8],
            "sha256": line.get("sha256", "")[:16],
        }

    return Table("messages", title, [row(line) for line in lines])


def _summary(place: Path, lines: list[dict[str, Any]]) -> tuple[list[tuple[str, str]], Table]:
    """Facts of the site, and a table of its runs, by its log's lines."""
    from pfedlora_flwr.features.demands import Ledger
    from pfedlora_flwr.report.table import Table
    from pfedlora_flwr.report.words import size

    runs: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        runs.setdefault(line["run"], []).append(line)
    rows = [
        {
            "run": str(run),
            "from": _clock(told[0]["time"]),
            "to": _clock(told[-1]["time"]),
            "method": next((line["method"] for line in told if "method" in line), "none"),
            "uploads": str(sum(line.get("upload", False) for line in told)),
            "left": size(sum(line.get("bytes", 0) for line in told)),
            "refused": str(sum("refused" in line for line in told)),
        }
        for run, told in runs.items()
    ]
    folder = place.expanduser()
    facts = [
        ("runs", str(len(runs))),
        ("ε of all runs together", Ledger(folder).words()),
        ("disk", size(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))),
        ("last message", _clock(lines[-1]["time"]) if lines else "none"),
        ("policy at the last message", (lines[-1].get("policy") if lines else "") or "none"),
    ]
    return facts, Table("runs", "Runs", rows)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
