"""What follows a report: the observers of its run are told where it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.observers.registry import observers_of
from pfedlora_flwr.runs.directory import RunDirectory


def told(paths: Sequence[Path], folder: Path) -> Iterator[str]:
    """Tells the observers of a report in `folder` on one run; a line for each that fails."""
    run = RunDirectory(paths[0].absolute())
    if len(paths) > 1 or not run.holds_run:
        return
    config = run.run_config()
    if not config.execution.observers:
        return
    try:
        observers = observers_of(config.execution)
    except UserError as error:
        yield f"warning: no observer was told of the report: {error}"
        return
    observers.report(config.flat() | {"output": str(run.path), "resume": True}, folder.absolute())
    for name, why in observers.failed.items():
        yield f"warning: observer {name} has not got the report: {why}"
