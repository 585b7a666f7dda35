"""A report, and what follows it: the observers of its run are told where it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pfedlora_flwr.comparison.plan import Keys
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import absolute
from pfedlora_flwr.observers.registry import observers_of
from pfedlora_flwr.report.write import Written, write_report
from pfedlora_flwr.runs.directory import RunDirectory


@dataclass(frozen=True)
class Report:
    """What was written. warnings: a line for each observer that has not got it."""

    written: Written
    warnings: list[str]


def report(
    paths: Sequence[Path],
    output: Path | None = None,
    *,
    target: float | None = None,
    score: str | None = None,
    margin: float | None = None,
    std: bool = False,
    best: bool = False,
) -> Report:
    """Writes the report on runs, comparisons and folders of runs to `output`, otherwise to `report`
    in the first path. target: the accuracy in (0, 1] that costs are counted to, in the place of the
    runs'. score, margin: of the verdict, in the place of `verdict.score` and `verdict.margin`. std,
    best: as `Study` has them. Raises UserError."""
    where = absolute(output) if output else paths[0] / "report"
    asked = {"verdict.score": score, "verdict.margin": margin}
    judged: Keys = {key: value for key, value in asked.items() if value is not None}
    written = write_report(paths, where, target, judged, std=std, best=best)
    return Report(written, [*_told(paths, written.folder)])


def _told(paths: Sequence[Path], folder: Path) -> Iterator[str]:
    """Tells the observers of a report on one run; a line for each that fails."""
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
