"""`pfedlora run`: an Experiment executed, shown while it goes on, and what came of it."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console

from pfedlora_flwr.commands.course import Course, round_line
from pfedlora_flwr.commands.display import conclude, progress_bars
from pfedlora_flwr.comparison.estimate import START, Speed
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.launch.execute import LOCAL_NOTE, execute, resources
from pfedlora_flwr.runs.directory import Row
from pfedlora_flwr.runs.lines import SoFar


def run(
    experiment: Experiment,
    out: Console,
    err: Console,
    *,
    port: int = 0,
    quiet: bool = False,
    engine: str = "flower",
) -> int:
    """Runs the Experiment and returns the exit code: 0 only for a completed run. Raises UserError before anything has started."""
    directory, shown = Path(experiment.output), 0
    lines = engine == "local" or not out.is_terminal  # a bar would be drawn over a debugger
    progress = progress_bars(out, quiet=quiet or engine == "local")
    course = Course(experiment, lambda: Speed(resources(experiment)[0]).seconds(experiment) - START)
    task = progress.add_task(experiment.method, total=experiment.rounds, what=course.words)

    def show(state: Row | None, so_far: SoFar) -> None:
        nonlocal shown
        stopping = state is not None and state["phase"] == "stopping"
        if not lines:
            progress.start()
            course.look(state, so_far)
            progress.update(task, completed=course.rounds, what=course.words, refresh=stopping)
        elif stopping and not quiet:
            out.print("stopping…", highlight=False)
        if so_far.lines > shown and not quiet and lines:
            out.print(round_line(experiment, so_far), highlight=False)
        shown = so_far.lines

    try:
        if engine == "local" and not quiet:
            out.print(f"local engine: {LOCAL_NOTE}", highlight=False, soft_wrap=True)
        result = execute(experiment, show, out, port=port, engine=engine)
    finally:
        if progress.live.is_started:  # otherwise it prints an empty line
            progress.stop()
    code = conclude(result, directory, out, err, again(directory, engine))
    if code == 0:
        page = shlex.join(["pfedlora", "report", _here(directory)])
        out.print(f"its tables, figures and page: {page}", highlight=False, soft_wrap=True)
    return code


def again(directory: Path, engine: str) -> str:
    """The command that goes on with the run, ready to paste in the folder that this one was given in."""
    return shlex.join(
        ["pfedlora", "run", "--resume", "-o", f"output={_here(directory)}", *(["--engine", engine] if engine != "flower" else [])]
    )


def _here(directory: Path) -> str:
    """The directory as it is named from this folder."""
    return str(directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory)
