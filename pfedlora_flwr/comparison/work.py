"""The remaining work of a comparison. Only the runs' directories store it; they are read again at
every question."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from pfedlora_flwr.comparison.outcome import Outcome, outcome
from pfedlora_flwr.comparison.plan import Candidate, Cell, Plan
from pfedlora_flwr.comparison.spec import Comparison, describe, short
from pfedlora_flwr.errors import UserError, some
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.runs.begin import check_extension, check_same
from pfedlora_flwr.runs.code_copy import Changed, changed
from pfedlora_flwr.runs.completed import DIVERGED, Missing, Run, read_run
from pfedlora_flwr.runs.directory import RunDirectory

STALE = "stale"
"""What `--redo` calls the runs that another code of the user's did than is here."""


@dataclass(frozen=True)
class Job:
    """One run that is to be done. repeats: how many such runs there will be, 1 unless the tuned
    keys are not chosen yet."""

    title: str
    config: RunConfig
    repeats: int = 1

    @property
    def directory(self) -> Path:
        return Path(self.config.execution.output)


@dataclass(frozen=True)
class Shard:
    """Every `of`-th run of a comparison, `number`, from 1, says which; all runs of a tuned cell
    stay together."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From `I/N`, empty: all. Raises UserError."""
        number, slash, of = text.partition("/")
        if not text:
            return cls()
        if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise UserError(f"shard is {text!r}; allowed: I/N with 1 ≤ I ≤ N")
        return cls(int(number), int(of))

    def takes(self, place: int) -> bool:
        """Whether the run at this place, from 0, is its."""
        return place % self.of == self.number - 1


@dataclass(frozen=True)
class Count:
    """Runs: all that there are to be, those that are done, those that have failed since we began,
    and those of the done that diverged."""

    of: int = 0
    done: int = 0
    failed: int = 0
    diverged: int = 0

    @property
    def ended(self) -> int:
        """Those that are done or have failed."""
        return self.done + self.failed

    @property
    def left(self) -> int:
        """Those that are still to be done, or are going on."""
        return self.of - self.ended

    def __add__(self, other: Count) -> Count:
        return Count(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass
class Work:
    """The part of a comparison that was asked for, its directory (absolute), and why the runs
    failed that have since we began.

    redo: the directories of runs that are there and shall be done again."""

    comparison: Comparison
    output: Path
    shard: Shard = Shard()
    failed: dict[Path, str] = field(default_factory=dict)
    redo: set[Path] = field(default_factory=set)

    def jobs(self) -> list[Job]:
        """The runs that are left, those of the first seed before the others'; runs that failed are
        left out."""
        found = [
            job
            for place, cell in enumerate(self._cells)
            for job in self._jobs_of(cell)
            if self._takes(place, cell, self.comparison.unit_of(job.config.experiment))
        ]
        of = self.comparison.unit_of
        return sorted(found, key=lambda job: self._seeds.index(of(job.config.experiment)))

    def examples(self) -> list[Job]:
        """A run of each cell, for what is the same in all of its runs."""
        c = self.comparison
        return [
            self._job(cell, cell.candidates[0], c.seeds[0]) for cell in c.cells() if cell.candidates
        ]

    def completed(self, *, any_rounds: bool = False) -> list[Run]:
        """The runs of the comparison that are done, those of rejected candidates included.

        any_rounds: also of other numbers of rounds than they are to have now."""
        found = (
            read_run(job.directory, None if any_rounds else job.config.experiment.rounds)
            for job in self.everything()
        )
        return [run for run in found if isinstance(run, Run)]

    def with_models(self) -> list[Run]:
        """The completed ones that still have their clients' models or states."""
        return [
            run
            for run in self.completed()
            if run.directory.clients.exists() or run.directory.states.exists()
        ]

    def failed_before(self) -> dict[Path, str]:
        """The runs that have failed, whoever did them, and why."""
        found = {job.directory: read_run(job.directory) for job in self.everything()}
        return {
            directory: run.reason
            for directory, run in found.items()
            if isinstance(run, Missing) and run.status == "failed"
        }

    def count(self) -> Count:
        """How many runs there are to be, and what has become of them."""
        c, found = self.comparison, Count()
        for place, cell in enumerate(self._cells):
            came = self._outcome(cell)
            if came.standalone:
                continue
            later = [seed for seed in c.seeds if self._takes(place, cell, seed)]
            if came.tried and self._takes(place, cell, c.tuning_seed):
                later = [seed for seed in later if seed != c.tuning_seed]
                for tried in came.tried:
                    found += self._counted(tried.candidate, c.tuning_seed, tried.run)
            if came.chosen is None:  # not yet, or never: then nothing follows
                waited = any(tried.waited_for for tried in came.tried)
                found += Count(of=len(later) if waited else 0)
                continue
            for seed in later:
                found += self._counted(came.chosen, seed, came.runs.get(seed) or came.missing[seed])
        return found

    def _counted(self, candidate: Candidate, seed: int, run: Run | Missing) -> Count:
        directory = self.output / candidate.runs[seed]
        if directory in self.redo:
            return Count(of=1)
        diverged = isinstance(run, Missing) and run.status == DIVERGED
        done = isinstance(run, Run) or run.final
        return Count(1, int(done), int(directory in self.failed), int(diverged))

    def drop_rejected(self) -> None:
        """Removes the models of completed candidates that were not chosen: they would fill the
        disk. Their accuracies stay."""
        for place, cell in enumerate(self._cells):
            seed = self.comparison.tuning_seed
            places = [self.output / candidate.runs[seed] for candidate in cell.candidates]
            models = [RunDirectory(path).clients.exists() for path in places]
            if sum(models) < 2 or not self._takes(place, cell, self.comparison.tuning_seed):
                continue
            found = self._outcome(cell)
            for tried in found.tried if found.chosen else ():
                if isinstance(tried.run, Run) and tried.candidate != found.chosen:
                    tried.run.directory.drop_models()

    def check(self) -> None:
        """Raises UserError when the directory holds another comparison, or a run's directory
        another Experiment."""
        plan = Plan.read(self.output)
        if plan and plan.name != self.comparison.name:
            raise UserError(
                f"{self.output} holds the comparison {plan.name!r}; give another output folder"
            )
        for job in self.everything():
            run = RunDirectory(job.directory)
            if run.holds_run:
                wanted = job.config.experiment
                check_same(
                    run,
                    wanted.replace(rounds=run.experiment().rounds),
                    f"give a new output folder, or remove {self.output}",
                )
                check_extension(run, wanted)

    def _jobs_of(self, cell: Cell) -> list[Job]:
        c, found = self.comparison, self._outcome(cell)
        if found.standalone:
            return []
        if len(cell.candidates) > 1:  # those that choose among them come before the others
            tried = [self._job(cell, candidate, c.tuning_seed) for candidate in cell.candidates]
            if again := [job for job in tried if job.directory in self.redo]:
                return again
        if found.chosen is not None:
            chosen = {seed: self.output / found.chosen.runs[seed] for seed in c.seeds}
            left = {seed for seed, run in found.missing.items() if not run.final}
            left = {seed for seed in left if chosen[seed] not in self.failed}
            left |= {seed for seed, directory in chosen.items() if directory in self.redo}
            return [self._job(cell, found.chosen, seed) for seed in chosen if seed in left]
        jobs = [self._job(cell, candidate, c.tuning_seed) for candidate in found.waiting]
        if jobs:  # the last one stands for the other seeds' runs too, which are not chosen yet
            jobs[-1] = replace(jobs[-1], repeats=1 + sum(seed != c.tuning_seed for seed in c.seeds))
        return jobs

    def other_code(self) -> dict[Path, Changed]:
        """The runs that another code of the user's did than is here, and by what that differs."""
        found = {
            job.directory: changed(RunDirectory(job.directory), job.config.flat())
            for job in self.everything()
        }
        return {directory: files for directory, files in found.items() if files}

    def ask_again(self, names: Iterable[str]) -> None:
        """Has runs done again that are there: `stale`, those by other code, or of a folder in the
        comparison's directory. Raises UserError for a name that means none."""
        there = [job.directory for job in self.everything() if job.directory.is_dir()]
        for name in names:
            place = self.output / name
            if name == STALE:
                meant = list(self.other_code())
            else:
                meant = [run for run in there if run == place or place in run.parents]
            if not meant and name != STALE:
                known = [str(run.relative_to(self.output)) for run in there]
                raise UserError(
                    f"redo is {name!r}; allowed: {STALE}, or the folder of runs that are there:"
                    f" {some(known) or 'there are none'}"
                )
            self.redo.update(meant)

    def _outcome(self, cell: Cell) -> Outcome:
        """The cell's outcome, in which a run that failed before we began is tried again."""
        c = self.comparison
        score = str(c.base.get("verdict.score", "accuracy"))

        def given_up(directory: Path, _: Missing) -> bool:
            return directory in self.failed

        return outcome(self.output, cell, c.seeds, c.tuning_seed, given_up, score)

    def everything(self) -> list[Job]:
        """Every run that this shard of the comparison may hold, done or not."""
        found = []
        for place, cell in enumerate(self._cells):
            pairs = [(candidate, seed) for candidate in cell.candidates for seed in candidate.runs]
            found += [
                self._job(cell, candidate, seed)
                for candidate, seed in pairs
                if self._takes(place, cell, seed)
            ]
        return found

    def _takes(self, place: int, cell: Cell, seed: int) -> bool:
        """Whether the run of this seed in the cell at this place is the shard's."""
        return self.shard.takes(
            place + (self._seeds.index(seed) if len(cell.candidates) == 1 else 0)
        )

    @cached_property
    def _seeds(self) -> list[int]:
        return list(dict.fromkeys((self.comparison.tuning_seed, *self.comparison.seeds)))

    @cached_property
    def _cells(self) -> list[Cell]:
        return self.comparison.cells()

    def _job(self, cell: Cell, candidate: Candidate, seed: int) -> Job:
        words = [
            describe(cell),
            *(f"{short(key)}={value}" for key, value in candidate.tuned.items()),
            *(f"{short(k)} {v}" for k, v in self.comparison.of_unit(seed).items()),
        ]
        return Job(", ".join(words), self.comparison.config(cell, candidate, seed, self.output))
