"""What `run`, `submit` and `compare` show: a run while it goes on, and what came of it."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.runs.directory import Row
from pfedlora_flwr.runs.rows import Result, RoundRow

FAILED, INTERRUPTED = 1, 130
"""Exit codes. A completed run's is 0, a user's mistake's 2."""
_RECENT, _LISTED = 5, 20
"""Rounds that the time left is judged by, and clients that a table lists."""


def progress_bars(out: Console, *, quiet: bool = False) -> Progress:
    """Bars for tasks with a field `what`, gone when they stop."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[what]}")
    return Progress(*columns, TimeElapsedColumn(), console=out, transient=True, refresh_per_second=4, disable=quiet)


def seconds_left(rounds: list[RoundRow], total: int) -> float | None:
    """Seconds for the rounds up to `total` at the mean of the last five; None before the first one is done."""
    recent = [row["seconds"] for row in rounds if row["round"]][-_RECENT:]
    return (total - rounds[-1]["round"]) * fmean(recent) if recent else None


def what_it_does(e: Experiment, state: Row | None, rounds: list[RoundRow]) -> str:
    """A running run in words, as `execute` shows it."""
    phase = state["phase"] if state else "starting"
    if phase == "connecting" and state:
        return f"{state['done']} of {state['of']} clients connected"
    if not rounds:
        return f"evaluating the initial models: {state['done']} of {state['of']}" if phase == "evaluating" and state else "starting"
    return round_line(e, rounds) + (f" · {state['done']}/{state['of']}" if phase in ("training", "evaluating") and state else "")


def round_line(e: Experiment, rounds: list[RoundRow]) -> str:
    """The last round's figures in a line."""
    last, left = rounds[-1], seconds_left(rounds, e.rounds)
    sent = sum(row["bytes_up"] + row["bytes_down"] for row in rounds)
    time_left = f" · {left:.0f} s left" if left is not None else ""
    return f"round {last['round']}/{e.rounds} · accuracy {last['accuracy']:.4f} · {megabytes(sent)}{time_left}"


def conclude(result: Result, directory: Path | str, out: Console, err: Console) -> int:
    """Prints what came of the run; the exit code."""
    if result["status"] == "completed":
        out.print(client_table(result))
        out.print(summary(result), highlight=False, soft_wrap=True)
        out.print(f"everything is in {directory}", highlight=False, soft_wrap=True)
        return 0
    can = "rounds" in result and result.get("resumable") and "--resume" not in str(result["error"])
    hint = "; continue it with --resume" if can else ""
    err.print(f"{result['status']}: {result['error']}{hint}", markup=False, highlight=False)
    return INTERRUPTED if result["status"] == "stopped" else FAILED


def client_table(result: Result) -> Table:
    """A line a client, at most 20."""
    title = Text(f"{result['method']} on {result['dataset']}: personalised test accuracy by client")  # as markup, :100: is an emoji
    table = Table(title=title)
    for name in ("client", "model", "training samples", "last trained in round", "accuracy"):
        table.add_column(name, justify="left" if name == "model" else "right")
    rows = list(result["per_client"].items())
    for client, row in rows[:_LISTED]:
        table.add_row(client, row["model"], str(row["samples"] or "-"), str(row["last_round"]), f"{row['accuracy']:.4f}")
    if len(rows) > _LISTED:
        table.add_row("…", f"{len(rows) - _LISTED} more in result.json", "", "", "")
    return table


def summary(result: Result) -> str:
    """The figures of a completed run, in three lines."""
    a, c, s = result["accuracy"], result["communication"], result["seconds"]
    return (
        f"mean test accuracy {a['final']:.4f} final, {a['at_best_validation']:.4f} at best validation "
        f"(round {a['best_validation_round']}), {a['max_test']:.4f} max; worst client {a['worst']:.4f}, std {a['std']:.4f}\n"
        f"sent up {c['parameters_up']:,} parameters ({megabytes(c['bytes_up'])}), "
        f"down {c['parameters_down']:,} ({megabytes(c['bytes_down'])}); "
        f"computed {result['flops']:.3g} FLOP\n"
        f"{result['rounds']} {'round' if result['rounds'] == 1 else 'rounds'} in {s['total']:.1f} s, "
        f"the median round in {s['per_round_median']:.2f} s; "
        f"{s['busy_share']:.0%} of {s['workers']} workers' time spent training or evaluating"
    )


def megabytes(count: float) -> str:
    """Bytes in words."""
    return f"{count / 1e6:.2f} MB"
