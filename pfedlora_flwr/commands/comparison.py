"""`pfedlora compare`: shows the runs of a comparison as they go on, and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from pfedlora_flwr.commands.console import plain
from pfedlora_flwr.commands.display import FAILED, progress_bars, stopped_code, watching
from pfedlora_flwr.commands.results import show_report
from pfedlora_flwr.comparison.spec import Comparison
from pfedlora_flwr.comparison.work import STALE
from pfedlora_flwr.ops import compare as comparing
from pfedlora_flwr.ops.report import report
from pfedlora_flwr.runs.output import from_here


def compare(
    whole: Comparison, output: Path, out: Console, err: Console, *, here: bool = False, **asked: Any
) -> int:
    """Does the missing runs, as `ops.compare` does, and reports on all; the exit code: 0 when none
    has failed. Raises UserError."""
    bars = progress_bars(out, quiet=here)  # a bar would be drawn over a debugger
    try:
        asked |= {"say": plain(out), "warn": err.print, "watch": watching(bars, out)}
        done = comparing.compare(whole, output, here=here, **asked)
    finally:
        if bars.live.is_started:  # otherwise it prints an empty line
            bars.stop()
    if done.stopped:
        again = any(name != STALE for name in asked.get("redo", ()))
        whole_again = ", and does those of --redo again from the first" if again else ""
        err.print(f"stopped; the same command continues{whole_again}")
        return stopped_code(done.stopped)
    if asked.get("dry_run"):
        return 0
    work = done.work
    if left := done.left(whole):
        later = f"pfedlora report {from_here(work.output)}"
        told = f"{left} runs are left, to other shards or parts; when those are done: {later}"
        out.print(told, soft_wrap=True)
    else:
        with out.status("drawing figures"):
            found = report([work.output])
        show_report(found.written, out)
    for directory, reason in work.failed.items():
        err.print(f"failed: {directory.relative_to(work.output)}: {reason}")
    if work.failed:
        err.print(f"{len(work.failed)} runs failed; the same command retries them")
    return FAILED if work.failed else 0
