"""The running part of a comparison: one run after the other in this process, or several at once in
warm workers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pfedlora_flwr.comparison import estimate
from pfedlora_flwr.comparison.work import Job, Work
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.launch import execute as executing
from pfedlora_flwr.launch.checks import Say
from pfedlora_flwr.launch.network import Network, going_on
from pfedlora_flwr.launch.worker import Worker, could_not_start, shares
from pfedlora_flwr.ops.progress_text import Course, duration
from pfedlora_flwr.runs.begin import continued
from pfedlora_flwr.runs.completed import DIVERGED
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.layout import Row
from pfedlora_flwr.runs.lines import SoFar, Watched
from pfedlora_flwr.runs.rows import SPENT, Result

_OF_ONE_RUN = (SPENT, "observer")
"""What stops a run by its own affairs: the others go on."""
_LOOK = 0.25
"""Seconds between two looks at runs in processes of their own."""
Watch = Callable[["Runs"], None]
"""Told several times a second how the runs stand."""


def run_all(
    work: Work,
    speed: estimate.Speed,
    engine: str,
    *,
    drop_models: bool,
    at_once: int,
    here: bool,
    say: Say,
    ended: Say,
    watch: Watch,
    network: Network | None = None,
) -> Result | None:
    """Does every job there is; the result of the run in which it was stopped, if it was.

    here: whether the local engine's runs are done in this process. network: the nodes that do the
    runs, in the place of an engine."""
    for run in work.with_models() if drop_models else ():
        run.directory.drop_models()
    runs = Runs(work, speed, say, ended, watch, drop_models, at_once)
    if network:
        runs.go_on = going_on
        return _one_by_one(runs, network.execute)
    if here or (engine == "flower" and at_once == 1):
        return _one_by_one(runs, partial(executing.execute, engine=engine))
    return _in_workers(runs, engine)


def _one_by_one(runs: Runs, execute: Callable[..., Result]) -> Result | None:
    """Each run in this process, or on nodes."""
    while waiting := runs.waiting():
        line, config = runs.begin(waiting[0]), runs.config(waiting[0])
        try:
            result = execute(config, line.show, runs.say)
        except UserError as error:
            result = could_not_start(str(error))
        if runs.end(line, result):
            return result
    return None


def _in_workers(runs: Runs, engine: str) -> Result | None:
    """Each run in a worker with its share of cores and GPUs. A worker that dies is replaced."""
    free, idle = shares(runs.at_once), list[Worker]()
    busy: dict[Worker, Going] = {}
    try:
        while (waiting := runs.waiting()) or busy:
            for job in waiting[: runs.at_once - len(busy)]:
                worker = idle.pop() if idle else Worker(free.pop(0))
                busy[worker] = runs.begin(job)
                worker.start(runs.config(job), engine)
            while not (ended := [worker for worker in busy if worker.ended]):
                for line in busy.values():
                    line.look()
                time.sleep(_LOOK)
            for worker in ended:
                line, result = busy.pop(worker), worker.result()
                if worker.alive:
                    idle.append(worker)
                else:
                    worker.close()
                    free.append(worker.share)
                if runs.end(line, result):
                    return result
    finally:
        for worker in busy:
            worker.stop(signal.SIGINT)
        for worker in busy:
            worker.result()
        for worker in (*busy, *idle):
            worker.close()
    return None


@dataclass
class Runs:
    """The runs of a comparison while it goes on: what is left, and what goes on."""

    work: Work
    speed: estimate.Speed
    say: Say
    ended: Say
    watch: Watch
    drop_models: bool
    at_once: int

    def __post_init__(self) -> None:
        self.go_on = continued
        self._again = set[Path]()
        self.going: list[Going] = []
        self._wait_for([])
        self._ended = self.count.ended

    def waiting(self) -> list[Job]:
        """The runs that are left and have not begun, as their directories tell."""
        going = [line.job.directory for line in self.going]
        self._wait_for([job for job in self.work.jobs() if job.directory not in going])
        return self._waiting

    def config(self, job: Job) -> RunConfig:
        """What is to be executed."""
        if job.directory in self._again:
            return job.config.executed(resume=False, overwrite=True)
        return self.go_on(job.config)

    def begin(self, job: Job) -> Going:
        """A run begins; it is no longer waited for."""
        self._wait_for([other for other in self._waiting if other is not job])
        if job.directory in self.work.redo:
            self.work.redo.discard(job.directory)
            self._again.add(job.directory)
        self.going.append(Going(self, job))
        self.watch(self)
        return self.going[-1]

    def end(self, line: Going, result: Result) -> bool:
        """What came of a run, also of one that could not start; whether it was stopped."""
        directory, job = RunDirectory(line.job.directory), line.job
        if result["status"] == "completed":
            directory.trim()
        # it did not begin: the report shall say why, unless another process has it
        elif directory.result() is None and not directory.is_held:
            with suppress(OSError):  # a full disk: the others go on
                job.directory.mkdir(parents=True, exist_ok=True)
                directory.write_result(result)
        self.going.remove(line)
        by = result.get("stopped_by")
        if result["status"] == "stopped" and by not in _OF_ONE_RUN:
            return True
        if result["status"] in ("completed", DIVERGED):
            if self.drop_models:
                directory.drop_models()
            self.work.drop_rejected()
        if result["status"] == DIVERGED:
            came = result["error"] or DIVERGED
        elif result["status"] == "completed":
            line.learn(result["seconds"]["total"])
            came = f"accuracy {result['accuracy']['at_best_validation']:.4f} at best validation"
        elif by == SPENT:
            came = f"stopped: {result['error']}"
        else:
            self.work.failed[job.directory] = result["error"] or "no reason given"
            came = f"{result['status']}: {result['error']}"
        if job.directory in [left.directory for left in self.work.jobs()]:  # it would not end
            came = f"{result['status']}, and its directory does not say so: it is not run again"
            self.work.failed[job.directory] = came
        self.count = self.work.count()
        self._ended += 1  # another one's result may be on disk already, and not yet told
        self.ended(f"{self._ended} of {self.count.of}: {job.title}: {came}")
        return False

    def words(self) -> str:
        """How all of them stand."""
        left = self._later + sum(line.left for line in self.going)
        done = f"{self.count.ended} of {self.count.of} runs done"
        return f"{done} · about {duration(left / self.at_once)} left"

    def _wait_for(self, jobs: list[Job]) -> None:
        self._waiting = jobs
        # asked for four times a second
        self._later, self.count = seconds_of(jobs, self.speed), self.work.count()


class Going:
    """A run that goes on. left: its seconds."""

    def __init__(self, runs: Runs, job: Job) -> None:
        self.job = job
        self.left = runs.speed.seconds(job.config)
        self._began, self._anew = time.monotonic(), not RunDirectory(job.directory).holds_run
        self.course = Course(job.config.experiment)
        self._runs, self._directory = runs, RunDirectory(job.directory)
        self._rounds: Watched | None = None

    def learn(self, seconds: float) -> None:
        """It is done: the estimate learns by the clock, or by its rounds' seconds where some were
        done before."""
        speed, config = self._runs.speed, self.job.config
        if self._anew:
            speed.learn_whole(config, time.monotonic() - self._began)
        else:
            speed.learn(config, seconds)

    def look(self) -> None:
        """Shows what a run in another process has left on disk."""
        if self._directory.holds_run:
            self._rounds = self._rounds or self._directory.watched()
            self.show(self._directory.doing(), self._rounds.look())

    def show(self, state: Row | None, so_far: SoFar) -> None:
        """Takes up what the run is doing, and its rounds so far."""
        self.course.look(state, so_far)
        own = self.course.left(state, so_far)
        self.left = self._runs.speed.seconds(self.job.config) if own is None else own
        self._runs.watch(self._runs)


def seconds_of(jobs: Iterable[Job], speed: estimate.Speed) -> float:
    """What they take, one after the other."""
    return sum(job.repeats * speed.seconds(job.config) for job in jobs)
