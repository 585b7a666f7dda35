"""`pfedlora run`: an Experiment executed, shown while it goes on, and what came of it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from pfedlora_flwr.commands.display import conclude, progress_bars, round_line, what_it_does
from pfedlora_flwr.commands.events import event_files
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.launch.execute import execute
from pfedlora_flwr.runs.directory import Row


def run(experiment: Experiment, out: Console, err: Console, *, port: int = 0, quiet: bool = False, tensorboard: bool = False) -> int:
    """Runs the Experiment and returns the exit code: 0 only for a completed run. Raises UserError before anything has started."""
    directory, shown = Path(experiment.output), 0
    events = event_files(directory) if tensorboard else None
    progress = progress_bars(out, quiet=quiet)
    task = progress.add_task(experiment.method, total=experiment.rounds, what="starting")

    def show(state: Row | None, rounds: list[Row]) -> None:
        nonlocal shown
        progress.start()
        progress.update(task, completed=rounds[-1]["round"] if rounds else 0, what=what_it_does(experiment, state, rounds))
        if len(rounds) > shown and not quiet and not out.is_terminal:
            out.print(round_line(experiment, rounds), highlight=False)
        if events is not None:
            events.write(rounds)
        shown = len(rounds)

    try:
        result = execute(experiment, show, out, port=port)
    finally:
        progress.stop()
        if events is not None:
            events.close()
    return conclude(result, directory, out, err)
