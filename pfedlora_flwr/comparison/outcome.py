"""What a cell of a comparison has come to, by one rule for whoever asks: the candidate chosen, its
completed runs, what is missing.

A tuned cell's choice is made when none of its candidates is waited for: each has completed or is
given up. One that diverged is, and is never chosen. The two callers give up others. `pfedlora
compare`: those that have failed since it began; what failed in an earlier start it tries again. A
report: all that failed; and what is not there, or has fewer rounds, where a run with a further seed
shows that the choice was made without it (`--only`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pfedlora_flwr.comparison.plan import Candidate, Cell, Choices, Keys, Plan, choices, unit
from pfedlora_flwr.errors import some
from pfedlora_flwr.runs.completed import (
    DIVERGED,
    NOT_RUN,
    OTHER_CODE,
    SHORTER,
    Missing,
    Run,
    mean_of_folds,
    read_run,
)

_NAMED = 5
"""Files that a reason names."""
GivenUp = Callable[[Path, Missing], bool]
"""Whether a run that is missing, in this directory, is no longer waited for."""


@dataclass(frozen=True)
class Tried:
    """A candidate of a tuned cell, and its run with the seed that chooses. score: that decides."""

    candidate: Candidate
    run: Run | Missing
    waited_for: bool = False
    score: str = "accuracy"

    @property
    def rank(self) -> tuple[float, float] | None:
        """As `Run.validation_by` has it, by the score that decides."""
        return self.run.validation_by(self.score) if isinstance(self.run, Run) else None

    @property
    def validation(self) -> float | None:
        """The mean score that decides, on the validation parts, so that more is better."""
        return self.rank[0] if self.rank else None


@dataclass(frozen=True)
class Outcome:
    """One method in one scenario: its runs by seed, completed or missing.

    chosen: the candidate whose runs these are; None before the choice, where no candidate has
    completed, or if there is none.
    tried: where keys were tuned, all candidates.
    title, own: in a report the method's name, unlike those of the others, and of a user's own its
    place among these.
    """

    scenario: Keys
    method: str
    chosen: Candidate | None
    runs: dict[int, Run]
    missing: dict[int, Missing]
    tried: tuple[Tried, ...] = ()
    title: str = ""
    own: int = 0

    @property
    def standalone(self) -> bool:
        """Whether it is Standalone by construction, and has no runs of its own."""
        return self.chosen is None and not self.missing

    @property
    def diverged(self) -> int:
        """The number of seeds that diverged."""
        return sum(run.status == DIVERGED for run in self.missing.values())

    def tuned_as(self, other: Outcome) -> bool:
        """Whether both had the same choices."""
        return self._choices == other._choices

    @property
    def _choices(self) -> Choices:
        found = (*(tried.candidate for tried in self.tried), self.chosen)
        return choices(candidate.tuned for candidate in found if candidate)

    @property
    def waiting(self) -> list[Candidate]:
        """The candidates that have yet to run before one can be chosen."""
        return [tried.candidate for tried in self.tried if tried.waited_for]


def outcome(
    directory: Path,
    cell: Cell,
    seeds: Sequence[int],
    tuning_seed: int,
    given_up: GivenUp,
    score: str = "accuracy",
) -> Outcome:
    """The outcome of a cell of the comparison in `directory`, with these seeds. score: by which a
    candidate is chosen."""
    if not cell.candidates:
        return Outcome(cell.scenario, cell.method, None, {}, {})
    tried: tuple[Tried, ...] = ()
    chosen: Candidate | None = cell.candidates[0]
    if len(cell.candidates) > 1:
        tried = tuple(
            _tried(directory, candidate, tuning_seed, given_up, score)
            for candidate in cell.candidates
        )
        chosen = None if any(t.waited_for for t in tried) else choose(tried)
    if chosen is None:
        why = _undecided(tried)
        others = Missing(NOT_RUN, f"{NOT_RUN}: {why.reason}") if why.status == DIVERGED else why
        missing = {seed: why if seed == tuning_seed else others for seed in seeds}
        return Outcome(cell.scenario, cell.method, None, {}, missing, tried)
    found = {seed: read_run(directory / chosen.runs[seed], chosen.rounds) for seed in seeds}
    runs = {seed: run for seed, run in found.items() if isinstance(run, Run)}
    missing = {seed: run for seed, run in found.items() if isinstance(run, Missing)}
    return of_one_code(Outcome(cell.scenario, cell.method, chosen, runs, missing, tried))


def of_one_code(found: Outcome) -> Outcome:
    """The outcome with the runs that the same code of the user's did as the newest one. The others
    are missing, with the files that differ: they are not averaged with these."""
    if not found.runs:
        return found
    newest = max(found.runs.values(), key=lambda run: run.begun)
    others = {
        seed: Missing(
            OTHER_CODE, f"{OTHER_CODE}: {some(differing, _NAMED)} has changed since", run.path
        )
        for seed, run in found.runs.items()
        if (differing := run.other_code(newest))
    }
    runs = {seed: run for seed, run in found.runs.items() if seed not in others}
    return replace(found, runs=runs, missing=found.missing | others)


def reported(directory: Path, plan: Plan) -> list[Outcome]:
    """The outcomes of a whole comparison as a report takes them."""

    def of(cell: Cell) -> Outcome:
        def given_up(_: Path, run: Missing) -> bool:
            return run.status == "failed" or (
                run.status in (NOT_RUN, SHORTER)
                and _was_chosen(directory, cell, plan, begun=run.status == NOT_RUN)
            )

        found = outcome(directory, cell, plan.seeds, plan.tuning_seed, given_up, plan.score)
        return by_seed(found, plan.folds)

    return [of(cell) for cell in plan.cells]


def by_seed(found: Outcome, folds: int) -> Outcome:
    """An outcome by seed, of one by fold of each seed: the mean of a seed's folds is its run, and a
    seed that lacks one is missing."""
    if folds == 1 or found.standalone:
        return found
    runs, missing = {}, {}
    for seed in dict.fromkeys(one // folds for one in (*found.runs, *found.missing)):
        of = [unit(seed, fold, folds) for fold in range(folds)]
        if lacking := [one for one in of if one not in found.runs]:
            why = found.missing.get(lacking[0], Missing(NOT_RUN, NOT_RUN))
            told = f"fold {lacking[0] % folds} of {folds}: {why.reason}"
            missing[seed] = replace(why, reason=told)
        else:
            runs[seed] = mean_of_folds([found.runs[one] for one in of])
    return replace(found, runs=runs, missing=missing)


def _was_chosen(directory: Path, cell: Cell, plan: Plan, *, begun: bool) -> bool:
    """Whether a candidate has run with another seed than that which chooses. begun: or runs; of an
    extension such runs are there before anything is chosen."""
    further = (
        (directory / run, candidate.rounds)
        for candidate in cell.candidates
        for seed, run in candidate.runs.items()
        if seed != plan.tuning_seed
    )
    return any(
        place.exists() if begun else isinstance(read_run(place, rounds), Run)
        for place, rounds in further
    )


def choose(tried: Sequence[Tried]) -> Candidate | None:
    """The candidate that is best by validation, the first of ties; None if none has run."""
    completed = [(t.rank, t.candidate) for t in tried if t.rank is not None]
    return max(completed, key=lambda pair: pair[0])[1] if completed else None


def _tried(
    directory: Path, candidate: Candidate, seed: int, given_up: GivenUp, score: str
) -> Tried:
    place = directory / candidate.runs[seed]
    run = read_run(place, candidate.rounds)
    waits = isinstance(run, Missing) and not run.final and not given_up(place, run)
    return Tried(candidate, run, waits, score)


def _undecided(tried: Sequence[Tried]) -> Missing:
    """Why a tuned cell has no run yet."""
    waiting = sum(t.waited_for for t in tried)
    if waiting:
        return Missing(
            NOT_RUN, f"not tuned yet: {len(tried) - waiting} of {len(tried)} candidates have run"
        )
    if all(isinstance(t.run, Missing) and t.run.status == DIVERGED for t in tried):
        return Missing(DIVERGED, f"{DIVERGED}: all {len(tried)} candidates")
    why = next(
        t.run.reason for t in tried if isinstance(t.run, Missing) and t.run.status != DIVERGED
    )
    return Missing("failed", f"nothing to choose from: {why}")
