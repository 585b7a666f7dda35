"""`pfedlora compare`: runs what is missing of a comparison, one run after the other, and then reports.

Nothing is remembered but the runs' directories: what is left to do is read from them before every run. So a comparison that was
killed goes on where it was, a completed run (one with the same Experiment) is never repeated, and an unfinished one is resumed.
All methods of a scenario and seed share the partition and the sampled clients, because these depend on the seed alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from pfedlora_flwr.commands.display import FAILED, INTERRUPTED, progress_bars, seconds_left, what_it_does
from pfedlora_flwr.comparison import estimate
from pfedlora_flwr.comparison.spec import PLAN, Cell, Comparison, describe, short
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.files import make_folder
from pfedlora_flwr.keys import UserError
from pfedlora_flwr.launch import execute as executing
from pfedlora_flwr.launch.execute import Show
from pfedlora_flwr.launch.simulation import claimed, stop_left_over
from pfedlora_flwr.report.load import Tried, choose
from pfedlora_flwr.report.words import count
from pfedlora_flwr.report.write import write_report
from pfedlora_flwr.runs.completed import Missing, Run, read_run
from pfedlora_flwr.runs.directory import Row, RunDirectory


@dataclass(frozen=True)
class Job:
    """One run that is to be done. repeats: how many such runs there will be, 1 unless the tuned keys are not chosen yet."""

    title: str
    experiment: Experiment
    repeats: int = 1

    @property
    def directory(self) -> Path:
        return Path(self.experiment.output)


@dataclass
class Plan:
    """The part of a comparison that was asked for, its directory, and the runs that have failed since we began."""

    comparison: Comparison
    output: Path
    failed: dict[Path, str] = field(default_factory=dict)

    def jobs(self) -> list[Job]:
        """The runs that are left, those of the first seed before the others'; runs that failed are left out."""
        found = [(order, job) for cell in self.comparison.cells() for order, job in self._of_cell(cell)]
        return [job for _, job in sorted(found, key=lambda pair: pair[0])]

    def _of_cell(self, cell: Cell) -> list[tuple[int, Job]]:
        c = self.comparison
        if len(cell.candidates) > 1:
            left = [job for job in self._tuning(cell) if self._is_left(job)]
            if left:  # the last one stands for the other seeds' runs too, which are not chosen yet
                later = sum(seed != c.tuning_seed for seed in c.seeds)
                return [(0, job) for job in left[:-1]] + [(0, replace(left[-1], repeats=1 + later))]
        chosen = self._choice(cell)
        jobs = [(i, self._job(cell, chosen, seed)) for i, seed in enumerate(c.seeds)] if chosen is not None else []
        return [(i, job) for i, job in jobs if self._is_left(job)]

    def _tuning(self, cell: Cell) -> list[Job]:
        """The runs that choose a cell's tuned keys: every candidate with the first seed."""
        return [self._job(cell, i, self.comparison.tuning_seed) for i in range(len(cell.candidates))]

    def _is_left(self, job: Job) -> bool:
        return job.directory not in self.failed and not isinstance(read_run(job.directory), Run)

    def _choice(self, cell: Cell) -> int | None:
        """The candidate that is chosen, once all have run; None where all have failed."""
        if len(cell.candidates) == 1:
            return 0
        found = [read_run(job.directory) for job in self._tuning(cell)]
        return choose([Tried({}, run.validation if isinstance(run, Run) else None) for run in found])

    def drop_rejected(self) -> None:
        """Removes the models of candidates that were not chosen, which would fill the disk. Their figures stay."""
        for cell in self.comparison.cells():
            tuning = self._tuning(cell)
            kept = [i for i, job in enumerate(tuning) if RunDirectory(job.directory).clients.exists()]
            if len(kept) < 2 or any(self._is_left(job) for job in tuning):
                continue
            chosen = self._choice(cell)
            for i in kept:
                if i != chosen:
                    RunDirectory(tuning[i].directory).drop_models()

    def _job(self, cell: Cell, candidate: int, seed: int) -> Job:
        chosen = cell.candidates[candidate]
        words = [describe(cell), *(f"{short(k)}={v}" for k, v in chosen.tuned.items()), f"seed {seed}"]
        return Job(", ".join(words), self.comparison.experiment(cell, chosen, seed, self.output))

    def everything(self) -> list[Job]:
        """Every run that the comparison may hold, done or not."""
        seeds = dict.fromkeys((self.comparison.tuning_seed, *self.comparison.seeds))
        return [self._job(cell, i, seed) for cell in self.comparison.cells() for i in range(len(cell.candidates)) for seed in seeds]

    def check(self) -> None:
        """Raises UserError when a run's directory holds another Experiment."""
        for job in self.everything():
            run = RunDirectory(job.directory)
            if run.holds_run:
                run.check_same(job.experiment, f"give a new --output, or remove {self.output}")


def compare(part: Comparison, whole: Comparison, output: Path, out: Console, err: Console, *, dry_run: bool = False) -> int:
    """Runs what is missing of `part`, then reports on `whole`; the exit code: 0 when no run has failed. Raises UserError."""
    plan = Plan(part, output.absolute())
    Plan(whole, plan.output).check()  # the report is on all of it
    if (plan.output / PLAN).exists() and (name := json.loads((plan.output / PLAN).read_text())["name"]) != whole.name:
        raise UserError(f"{output} holds the comparison {name!r}; give another --output")
    if dry_run:
        _show_plan(plan, out)
        return 0
    make_folder(output)
    lock = FileLock(plan.output / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"{output} is in use by a running compare; wait for it, or give another --output") from None
    with lock:
        whole.write_plan(plan.output)
        for left in plan.output.glob("**/logs/launch.json"):  # a compare that was killed leaves its run going
            with claimed(left.parent.parent):
                stop_left_over(left.parent.parent)
        try:
            for cell in part.cells():
                executing.preflight(part.experiment(cell, cell.candidates[0], part.seeds[0], plan.output))
            stopped = _run_all(plan, out)
        except KeyboardInterrupt:
            stopped = True
        if stopped:
            err.print("stopped; the same command goes on where it was", highlight=False)
            return INTERRUPTED
        report = write_report([plan.output], plan.output / "report", out)
    out.print(f"the report is in {report}", highlight=False, soft_wrap=True)
    for directory, reason in plan.failed.items():
        err.print(f"failed: {directory.relative_to(plan.output)}: {reason}", markup=False, highlight=False)
    if plan.failed:
        err.print(f"{len(plan.failed)} runs failed; the same command tries them again", highlight=False)
    return FAILED if plan.failed else 0


def _run_all(plan: Plan, out: Console) -> bool:
    """Does every job there is; True when it was stopped. One display shows the run and the time that all of them have left."""
    speed, done = _speed(plan), len(_completed(plan))
    progress = progress_bars(out)
    overall, current = progress.add_task("all runs", what=""), progress.add_task("", what="", visible=False)
    with progress:
        while jobs := plan.jobs():
            job, rest = jobs[0], _seconds(jobs, speed) - speed.seconds(jobs[0].experiment)
            before = done + len(plan.failed)
            number, of = before + 1, before + sum(j.repeats for j in jobs)

            def show(state: Row | None, rounds: list[Row], job: Job = job, rest: float = rest, number: int = number, of: int = of) -> None:
                own, e = seconds_left(rounds, job.experiment.rounds), job.experiment
                left = rest + (speed.seconds(e) if own is None else own)
                progress.update(overall, total=of, completed=number - 1, what=f"run {number} of {of} · about {duration(left)} left")
                progress.update(current, completed=rounds[-1]["round"] if rounds else 0, what=what_it_does(e, state, rounds))

            progress.reset(current, total=job.experiment.rounds, description=job.title, visible=True, what="starting")
            result = _run(job, show, out)
            if result["status"] == "stopped":
                return True
            if result["status"] == "completed":
                plan.drop_rejected()
                done += 1
                speed.learn(job.experiment, result["seconds"]["total"])
                came = f"accuracy {result['accuracy']['at_best_validation']:.4f} at best validation"
            else:
                plan.failed[job.directory] = result["error"]
                came = f"failed: {result['error']}"
            out.print(f"{number} of {of}: {job.title}: {came}", highlight=False, markup=False, soft_wrap=True)
    return False


def _run(job: Job, show: Show, out: Console) -> Row:
    """Starts, resumes or starts over one run; its result, also for one that could not start."""
    directory = RunDirectory(job.directory)
    begun = directory.holds_run  # what a run that was killed before this leaves is nothing to continue
    try:
        result = executing.execute(job.experiment.replace(resume=begun, overwrite=not begun), show, out)
    except UserError as error:
        result = {"status": "failed", "error": str(error)}
    if result["status"] == "completed":
        directory.trim()
    elif directory.result() is None:  # it did not begin: the report shall say why
        job.directory.mkdir(parents=True, exist_ok=True)
        directory.write_result(result)
    return result


def _completed(plan: Plan) -> list[Run]:
    return [run for run in (read_run(job.directory) for job in plan.everything()) if isinstance(run, Run)]


def _speed(plan: Plan) -> estimate.Speed:
    first = plan.comparison.cells()[0]
    e = plan.comparison.experiment(first, first.candidates[0], plan.comparison.tuning_seed)
    speed = estimate.Speed(executing.resources(e)[0])
    for run in _completed(plan):
        speed.learn(run.experiment, run.result["seconds"]["total"])
    return speed


def _state(job: Job) -> str:
    run = read_run(job.directory)
    return run.reason if isinstance(run, Missing) else "completed"


def _seconds(jobs: list[Job], speed: estimate.Speed) -> float:
    return sum(job.repeats * speed.seconds(job.experiment) for job in jobs)


def _show_plan(plan: Plan, out: Console) -> None:
    """What would run, how long it may take and the disk it will need."""
    speed, jobs = _speed(plan), plan.jobs()
    for job in jobs:
        more = f" (and {job.repeats - 1} more with the values chosen)" if job.repeats > 1 else ""
        took = f"about {duration(speed.seconds(job.experiment))}, {count(estimate.model_bytes(job.experiment))}B of models"
        out.print(f"{job.title}{more}: {_state(job)}; {took}", highlight=False, markup=False, soft_wrap=True)
    disk = estimate.disk(job.experiment for job in jobs for _ in range(job.repeats))
    basis = "a guess: no run has been timed yet" if speed.guessed else "from the runs that are done"
    out.print(
        f"{len(_completed(plan))} runs are completed, {sum(j.repeats for j in jobs)} are left: "
        f"about {duration(_seconds(jobs, speed))} ({basis}), {count(disk)}B of disk in {plan.output}",
        highlight=False,
        soft_wrap=True,
    )


def duration(seconds: float) -> str:
    """Seconds in words: `40 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"
