"""`pfedlora run`: executes an Experiment, shows its progress and its result."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console

from pfedlora_flwr.commands.console import plain
from pfedlora_flwr.commands.display import conclude, progress_bars, room, stopped_code
from pfedlora_flwr.comparison.estimate import START, Speed
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.launch.execute import LOCAL_NOTE, STOPPED, execute
from pfedlora_flwr.launch.processes import SIGNALS, Stopped, stoppable
from pfedlora_flwr.launch.resources import resources
from pfedlora_flwr.ops.progress_text import Course, round_line
from pfedlora_flwr.runs.layout import Row
from pfedlora_flwr.runs.lines import SoFar
from pfedlora_flwr.runs.output import from_here


def run(
    config: RunConfig,
    out: Console,
    err: Console,
    *,
    port: int = 0,
    quiet: bool = False,
    engine: str = "flower",
) -> int:
    """Runs the Experiment and returns the exit code: 0 only for a completed run. Raises UserError
    before anything has started."""
    experiment = config.experiment
    directory, shown = Path(config.execution.output), -1
    lines = engine == "local" or not out.is_terminal  # a bar would be drawn over a debugger
    progress = progress_bars(out, quiet=quiet or lines)

    def guess() -> float:
        at_once = 1 if engine == "local" else resources(config).at_once
        return Speed(at_once).seconds(config) - START

    course = Course(experiment, guess)
    task = progress.add_task(experiment.method, total=experiment.rounds, what=course.words())

    def show(state: Row | None, so_far: SoFar) -> None:
        nonlocal shown
        if quiet:
            return
        course.look(state, so_far)
        if not lines:
            words = course.words(room(out, experiment.method))
            progress.update(task, completed=course.rounds, what=words, refresh=course.stopping)
        elif course.stopping:
            out.print(course.parts[0])
            return
        elif shown < 0:
            out.print(course.words(), soft_wrap=True)
        if lines and so_far.lines > max(shown, 0):
            out.print(round_line(experiment, so_far), soft_wrap=True)
        shown = so_far.lines

    try:
        if engine == "local" and not quiet and config.execution.lanes == 1:
            out.print(f"local engine: {LOCAL_NOTE}", soft_wrap=True)
        with stoppable(*SIGNALS):
            try:
                if not lines:
                    progress.start()
                result = execute(config, show, plain(out), port=port, engine=engine)
            finally:
                if progress.live.is_started:  # otherwise it prints an empty line
                    progress.stop()
    except Stopped as stop:
        error, by = STOPPED[stop.number]
        err.print(f"{error} before the run started")
        return stopped_code({"status": "stopped", "error": error, "stopped_by": by})
    code = conclude(result, from_here(directory), out, err, again(directory, engine))
    if code == 0:
        page = shlex.join(["pfedlora", "report", str(from_here(directory))])
        out.print(f"its tables, figures and page: {page}", soft_wrap=True)
    return code


def again(directory: Path, engine: str) -> str:
    """The command that goes on with the run, ready to paste in the folder that this one was given
    in."""
    words = ["pfedlora", "run", "--resume", "-o", f"output={from_here(directory)}"]
    return shlex.join(words + (["--engine", engine] if engine != "flower" else []))
