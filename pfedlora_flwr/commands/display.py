"""The display of `run`, `submit` and `compare`: a run's progress and its result."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from pfedlora_flwr.errors import counted
from pfedlora_flwr.features.records import lines_of
from pfedlora_flwr.ops.progress_text import megabytes
from pfedlora_flwr.ops.run_queue import Going, Runs, Watch
from pfedlora_flwr.runs.result import never_evaluated
from pfedlora_flwr.runs.rows import SPENT, Result

FAILED, AGAIN_LATER, INTERRUPTED = 1, 75, 130
"""Exit codes. A completed run's is 0, a user's mistake's 2. 75 (EX_TEMPFAIL): the time was over, an
observer stopped it or SIGTERM came; the run can go on."""
_ALL = "all runs"
_LISTED = 20
"""Clients that a table lists."""
_WIDE, _BAR, _SHORT_BAR = 132, 24, 10
"""Columns: of a terminal that has room for a long bar, of that bar, and of the other."""
_COLOURS = Theme(
    {
        "bar.complete": "green",
        "bar.finished": "green",
        "bar.back": "bright_black",
        "progress.elapsed": "none",
    }
)
"""The terminal's own, which can be read on light and on dark ground."""


def progress_bars(out: Console, *, quiet: bool = False) -> Progress:
    """Bars for tasks with a field `what`, gone when they stop."""
    out.push_theme(_COLOURS)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        BarColumn(bar_width=_bar_width(out)),
        TextColumn("{task.fields[what]}", markup=False),
    )
    return Progress(*columns, console=out, transient=True, refresh_per_second=4, disable=quiet)


def watching(bars: Progress, out: Console) -> Watch:
    """Draws a bar for each run of a comparison, and one for all, from when they are told of."""
    tasks: dict[Going, TaskID] = {}
    whole = bars.add_task(_ALL, what="")

    def watch(runs: Runs) -> None:
        bars.start()
        bars.update(whole, total=runs.count.of, completed=runs.count.ended, what=runs.words())
        for gone in tasks.keys() - runs.going:
            bars.remove_task(tasks.pop(gone))
        for line in runs.going:
            title, course = line.job.title, line.course
            if line not in tasks:
                tasks[line] = bars.add_task(title, total=line.job.config.experiment.rounds, what="")
            words = course.words(room(out, max(_ALL, title, key=len)))
            bars.update(tasks[line], completed=course.rounds, what=words, refresh=course.stopping)

    return watch


def room(out: Console, description: str) -> int:
    """Columns for the field `what`, so that the line ends before the terminal does: `^C` is written
    behind it."""
    spinner, elapsed, between, echo = 1, len("0:00:00"), 4, 3
    return out.width - spinner - len(description) - _bar_width(out) - elapsed - between - echo


def conclude(result: Result, directory: Path | str, out: Console, err: Console, again: str) -> int:
    """Prints what came of the run, and `again`, the command that goes on with it; the exit code."""
    for name, why in result.get("observers", {}).items():
        err.print(f"observer {name} failed: {why}", soft_wrap=True)
    if result["status"] == "completed":
        out.print(client_table(result))
        # in a file a line stays one
        out.print(summary(result), soft_wrap=not out.is_terminal)
        out.print(f"everything is in {directory}", soft_wrap=True)
        return 0
    if result["status"] == "diverged":
        err.print(result["error"], soft_wrap=True)
        return FAILED
    after = f" after round {result['rounds']}" if "rounds" in result else ""
    stopped = result["status"] == "stopped"
    err.print(f"{result['error']}{after}" if stopped else f"failed{after}: {result['error']}")
    if stopped and not after:
        err.print("no round was completed; the same command starts it again")
    if after and (stopped or result.get("resumable")) and result.get("stopped_by") != SPENT:
        err.print(f"{'to continue' if stopped else 'to continue once that is mended'}: {again}")
    return stopped_code(result) if stopped else FAILED


def stopped_code(result: Result) -> int:
    """The exit code of a stopped run."""
    by = result.get("stopped_by")
    if by == SPENT:
        return FAILED
    return AGAIN_LATER if by in ("system", "time", "observer") else INTERRUPTED


def _bar_width(out: Console) -> int:
    return _BAR if out.width >= _WIDE else _SHORT_BAR


def client_table(result: Result) -> Table:
    """A line a client, at most 20."""
    # as markup, :100: is an emoji
    title = Text(f"{result['method']} on {result['dataset']}: personalised test accuracy by client")
    table = Table(title=title)
    for name in ("client", "model", "training samples", "last trained in round", "accuracy"):
        table.add_column(name, justify="left" if name == "model" else "right")
    rows = list(result["per_client"].items())
    for client, row in rows[:_LISTED]:
        table.add_row(
            client,
            Text(row["model"]),
            str(row["samples"] or "-"),
            str(row["last_round"]),
            f"{row['accuracy']:.4f}",
        )
    if result["accuracy"]["worst"] is None:
        table.add_row("…", "under masks only means of all are known", "", "", "")
    if len(rows) > _LISTED:
        table.add_row("…", f"{len(rows) - _LISTED} more in result.json", "", "", "")
    return table


def summary(result: Result) -> str:
    """The figures of a completed run, in four lines, and what features say of it."""
    a, c, s = result["accuracy"], result["communication"], result["seconds"]
    scores = {
        "balanced accuracy": result.get("balanced_accuracy"),
        "macro-F1": result.get("macro_f1"),
    }
    told = {name: score["final"] for name, score in scores.items() if score}
    told |= {"worst client": a["worst"], "std": a["std"]}
    finals = [f"{name} {value:.4f}" for name, value in told.items() if value is not None]
    missing = never_evaluated(result)
    over = f" (over {a['evaluated']} of {a['evaluated'] + missing} clients)" if missing else ""
    lines = [
        (
            f"mean test accuracy{over} {a['final']:.4f} final, {a['at_best_validation']:.4f} at"
            f" best validation (round {a['best_validation_round']}), {a['max_test']:.4f} max"
        ),
        f"final: {', '.join(finals)}",
        f"sent up {c['parameters_up']:,} parameters ({megabytes(c['bytes_up'])}), "
        f"down {c['parameters_down']:,} ({megabytes(c['bytes_down'])})"
        + (f"; computed {result['flops']:.3g} FLOP" if result["flops"] else ""),
        (
            f"{counted(result['rounds'], 'round')} in {s['total']:.1f} s, median"
            f" {s['per_round_median']:.2f} s a round;"
            f" {s['busy_share']:.0%} of {s['workers']} workers' time spent training or evaluating"
        ),
    ]
    return "\n".join([*lines, *lines_of(result)])
