"""`pfedlora compare`: runs what is missing of a comparison, one run after the other, and then reports.

What is left to do is read from the runs' directories before every run. So a comparison that was killed goes on where it was, a
completed run (one with the same Experiment) is never repeated, and an unfinished one is resumed.
All methods of a scenario and seed share the partition and the sampled clients, because these depend on the seed alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from pfedlora_flwr.commands.course import Course, duration
from pfedlora_flwr.commands.display import FAILED, progress_bars, room, stopped_code
from pfedlora_flwr.comparison import estimate
from pfedlora_flwr.comparison.spec import Comparison
from pfedlora_flwr.comparison.work import Job, Work
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import make_folder
from pfedlora_flwr.launch import execute as executing
from pfedlora_flwr.launch.execute import STOPPED, Show
from pfedlora_flwr.launch.processes import SIGNALS, Stopped, stoppable
from pfedlora_flwr.launch.simulation import claimed, stop_left_over
from pfedlora_flwr.report.words import count
from pfedlora_flwr.report.write import write_report
from pfedlora_flwr.runs.completed import Missing, read_run
from pfedlora_flwr.runs.directory import Row, RunDirectory
from pfedlora_flwr.runs.lines import SoFar
from pfedlora_flwr.runs.rows import Result

_ALL = "all runs"


def compare(
    part: Comparison,
    whole: Comparison,
    output: Path,
    out: Console,
    err: Console,
    *,
    dry_run: bool = False,
    engine: str = "flower",
    drop_models: bool = False,
) -> int:
    """Runs what is missing of `part`, then reports on `whole`; the exit code: 0 when no run has failed. Raises UserError.

    drop_models: whether no completed run keeps its clients' models.
    """
    executing.check_engine(engine)
    work = Work(part, output.absolute())
    Work(whole, work.output).check()  # the report is on all of it
    _preflight(work, dry_run)
    if dry_run:
        _show_work(work, out, engine, drop_models)
        return 0
    with _claimed(output), stoppable(*SIGNALS):
        whole.plan().write(work.output)
        _stop_left_over(work.output)
        try:
            if (stopped := _run_all(work, out, engine, drop_models)) is None:
                written = write_report([work.output], work.output / "report", out)
        except Stopped as stop:
            stopped = {"status": "stopped", "error": stop.number.name, "stopped_by": STOPPED[stop.number][1]}
        if stopped:
            err.print("stopped; the same command goes on where it was", highlight=False)
            return stopped_code(stopped)
    out.print(f"the report is in {written.folder}", highlight=False, soft_wrap=True)
    for directory, reason in work.failed.items():
        err.print(f"failed: {directory.relative_to(work.output)}: {reason}", markup=False, highlight=False)
    if work.failed:
        err.print(f"{len(work.failed)} runs failed; the same command tries them again", highlight=False)
    return FAILED if work.failed else 0


class _Display:
    """Two lines while a comparison runs: the run that is going, and the time that all of them have left."""

    def __init__(self, speed: estimate.Speed, out: Console, *, quiet: bool) -> None:
        self.progress = progress_bars(out, quiet=quiet)
        self._speed = speed
        self._out = out
        self._all = self.progress.add_task(_ALL, what="")
        self._current = self.progress.add_task("", what="", visible=False)

    def begin(self, jobs: Sequence[Job], number: int, of: int) -> None:
        """The first of `jobs` begins; it is run `number` of `of`."""
        self._experiment, self._number, self._of = jobs[0].experiment, number, of
        self._course = Course(self._experiment)
        self._later = _seconds(jobs, self._speed) - self._speed.seconds(self._experiment)
        self._title = jobs[0].title
        what = self._course.words()
        self.progress.reset(self._current, total=self._experiment.rounds, description=self._title, visible=True, what=what)

    def show(self, state: Row | None, so_far: SoFar) -> None:
        """What the run is doing, and its rounds so far."""
        self._course.look(state, so_far)
        own = self._course.left(state, so_far)
        left = self._later + (self._speed.seconds(self._experiment) if own is None else own)
        words = f"run {self._number} of {self._of} · about {duration(left)} left"
        self.progress.update(self._all, total=self._of, completed=self._number - 1, what=words)
        own_words = self._course.words(room(self._out, max(_ALL, self._title, key=len)))
        stopping = state is not None and state["phase"] == "stopping"
        self.progress.update(self._current, completed=self._course.rounds, what=own_words, refresh=stopping)


@contextmanager
def _claimed(output: Path) -> Iterator[None]:
    """Holds the comparison's directory, made if it is not there. Raises UserError when another `compare` has it."""
    make_folder(output)
    lock = FileLock(output.absolute() / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"{output} is in use by a running compare; wait for it, or give another --output") from None
    with lock:
        yield


def _stop_left_over(output: Path) -> None:
    """A compare that was killed leaves its run going: this ends it."""
    for launch_file in output.glob("**/logs/launch.json"):
        directory = launch_file.parent.parent
        with claimed(directory):
            stop_left_over(directory)


def _preflight(work: Work, dry_run: bool) -> None:
    """Raises UserError, with the scenario's name, where a run could not start. A dry run downloads nothing: it leaves such out."""
    examples = work.examples()
    if not examples:
        raise UserError("nothing to run: all that was asked for is Standalone by construction, which sharing=mean runs")
    for job in examples:
        e = job.experiment
        if dry_run and datasets.needs_download(e.dataset, Reading.of(e)):
            continue
        try:
            executing.preflight(e)
        except UserError as error:
            raise type(error)(f"{job.title}: {error}") from error.__cause__


def _run_all(work: Work, out: Console, engine: str, drop_models: bool) -> Result | None:
    """Does every job there is; the result of the run in which it was stopped, if it was."""
    speed, done = _speed(work, engine), len(work.completed())
    if drop_models:  # one that was killed after its result still has them
        for run in work.completed():
            run.directory.drop_models()
    display = _Display(speed, out, quiet=engine == "local")  # a bar would be drawn over a debugger
    with display.progress:
        while jobs := work.jobs():
            job, before = jobs[0], done + len(work.failed)
            number, of = before + 1, before + _count(jobs)
            display.begin(jobs, number, of)
            result = _run(job, display.show, out, engine)
            if result["status"] == "stopped":
                return result
            if result["status"] == "completed":
                if drop_models:
                    RunDirectory(job.directory).drop_models()
                work.drop_rejected()
                done += 1
                speed.learn(job.experiment, result["seconds"]["total"])
                came = f"accuracy {result['accuracy']['at_best_validation']:.4f} at best validation"
            else:
                work.failed[job.directory] = result["error"] or "no reason given"
                came = f"failed: {result['error']}"
            out.print(f"{number} of {of}: {job.title}: {came}", highlight=False, markup=False, soft_wrap=True)
    return None


def _run(job: Job, show: Show, out: Console, engine: str) -> Result:
    """Starts, resumes or starts over one run; its result, also for one that could not start."""
    directory = RunDirectory(job.directory)
    begun = directory.holds_run  # what a run that was killed before this leaves is nothing to continue
    try:
        result = executing.execute(job.experiment.replace(resume=begun, overwrite=not begun), show, out, engine=engine)
    except UserError as error:
        result = {"status": "failed", "error": str(error)}
    if result["status"] == "completed":
        directory.trim()
    elif directory.result() is None:  # it did not begin: the report shall say why
        job.directory.mkdir(parents=True, exist_ok=True)
        directory.write_result(result)
    return result


def _speed(work: Work, engine: str) -> estimate.Speed:
    actors, _ = executing.resources(work.examples()[0].experiment)
    speed = estimate.Speed(actors if engine == "flower" else 1)
    for run in work.completed():
        speed.learn(run.experiment, run.result["seconds"]["total"])
    return speed


def _count(jobs: Sequence[Job]) -> int:
    return sum(job.repeats for job in jobs)


def _seconds(jobs: Sequence[Job], speed: estimate.Speed) -> float:
    return sum(job.repeats * speed.seconds(job.experiment) for job in jobs)


def _show_work(work: Work, out: Console, engine: str, drop_models: bool) -> None:
    """What would run, how long it may take and the disk it will need."""
    speed, jobs = _speed(work, engine), work.jobs()
    for job in jobs:
        more = f" (and {job.repeats - 1} more with the values chosen)" if job.repeats > 1 else ""
        e = job.experiment
        took = f"about {duration(speed.seconds(e))}, {count(estimate.model_bytes(e))}B of models"
        took += f", {count(estimate.state_bytes(e))}B of states" if estimate.state_bytes(e) else ""
        out.print(f"{job.title}{more}: {_state(job)}; {took}", highlight=False, markup=False, soft_wrap=True)
    disk = estimate.disk((job.experiment for job in jobs for _ in range(job.repeats)), kept=not drop_models)
    basis = "a guess: no run has been timed yet" if speed.guessed else "from the runs that are done"
    out.print(
        f"{len(work.completed())} runs are completed, {_count(jobs)} are left: "
        f"about {duration(_seconds(jobs, speed))} ({basis}), {count(disk)}B of disk in {work.output}",
        highlight=False,
        soft_wrap=True,
    )


def _state(job: Job) -> str:
    run = read_run(job.directory)
    return run.reason if isinstance(run, Missing) else "completed"
