"""A run as reports and comparisons see it: completed, with its measures, or missing, with the
reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.runs import right_rows
from pfedlora_flwr.runs.code_copy import Hashes, check_importable, differing_files, hashes_of
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.provenance import read_about
from pfedlora_flwr.runs.records import check_told
from pfedlora_flwr.runs.result import at_best, best_round, to_target, validation_of
from pfedlora_flwr.runs.right_rows import RightRows
from pfedlora_flwr.runs.rows import SPENT, Result, RoundRow, ToTarget

_ROUNDING = 1e-9
"""Of two ways to the same accuracy."""


@dataclass(frozen=True)
class Run:
    """A completed run. target: the accuracy that its costs are counted to, where another than the
    Experiment's is asked for."""

    directory: RunDirectory
    result: Result
    target: float | None = None

    @property
    def path(self) -> Path:
        return self.directory.path

    @cached_property
    def config(self) -> RunConfig:
        try:
            return self.directory.run_config()
        except UserError:
            check_importable(self.directory.saved_keys(), self.directory.source)
            raise

    @property
    def experiment(self) -> Experiment:
        return self.config.experiment

    @property
    def setup(self) -> Setup:
        """Its data, its task and its method."""
        return Setup.of(self.config)

    @cached_property
    def rounds(self) -> list[RoundRow]:
        rows = self.directory.rounds()
        last, hashes = rows[-1]["round"] if rows else -1, self.directory.hashes_file
        check_told(self.path, last, self.result, hashes)
        return rows

    @cached_property
    def to_target(self) -> ToTarget:
        """What it took until the target."""
        e = self.experiment
        return to_target(
            e if self.target is None else e.replace(target_accuracy=self.target), self.rounds
        )

    @cached_property
    def code(self) -> Hashes:
        """The files of the user's own code that did its last rounds, by path; empty where it has
        none."""
        return hashes_of(self.directory)

    def other_code(self, run: Run) -> list[str]:
        """The files of the user's own code that are not the same in another run."""
        return differing_files(self.code, run.code)

    @cached_property
    def begun(self) -> str:
        """When it was started last, in ISO 8601; empty where that is not recorded."""
        history = read_about(self.directory.config).get("history") or [{}]
        return str(history[-1].get("date", ""))

    @property
    def accuracy(self) -> float:
        """Mean test accuracy at best validation, in [0, 1]: the headline."""
        return self.result["accuracy"]["at_best_validation"]

    def judged_by(self, score: str) -> Run:
        """The run, with the round of the best validation by this score."""
        if score == self.config.execution.verdict_score:
            return self
        found = at_best(self.experiment, self.rounds, score)
        found["accuracy"] = {**self.result["accuracy"], **found["accuracy"]}
        return replace(self, result=cast(Result, {**self.result, **found}))

    @property
    def validation(self) -> float:
        """The mean validation accuracy of the round which `accuracy` is taken at."""
        best = self.result["accuracy"]["best_validation_round"]
        return next(row["validation_accuracy"] for row in self.rounds if row["round"] == best)

    def validation_by(self, score: str) -> tuple[float, float]:
        """Of the round of the best validation the mean score on the validation parts, so that more
        is better (−inf if no round has it), and the accuracy there, which decides ties."""
        best = best_round(self.experiment, self.rounds, score)
        return validation_of(best, score), best["validation_accuracy"]

    @cached_property
    def right_rows(self) -> dict[int, RightRows]:
        """By client which test rows were right at the headline's round; empty where that is not
        kept of all of them."""
        best = self.result["accuracy"]["best_validation_round"]
        read = (right_rows.read(self.directory.right_rows(k), best) for k in self.clients)
        found = dict(zip(self.clients, read, strict=True))
        kept = {k: rows for k, rows in found.items() if rows}
        whole = kept and len(kept) == len(found)
        told = fmean(rows.right.mean() for rows in kept.values()) if whole else -1.0
        return kept if abs(told - self.accuracy) < _ROUNDING else {}

    @cached_property
    def sites_at_best(self) -> dict[str, Mapping[str, Any]]:
        """By client the line of the visit after which its model was that of the headline's round;
        empty where lines do not tell the scores of all of them."""
        best = self.result["accuracy"]["best_validation_round"]
        found: dict[str, Mapping[str, Any]] = {
            str(row["client"]): row
            for row in self.directory.visits()
            if row["status"] == "ok" and row["round"] <= best
        }
        told = [row["accuracy"] for row in found.values() if row.get("accuracy") is not None]
        whole = found.keys() == self.result["per_client"].keys() and len(told) == len(found) > 0
        return found if whole and abs(fmean(told) - self.accuracy) < _ROUNDING else {}

    @property
    def clients(self) -> dict[int, float]:
        """Test accuracy at the end, by client."""
        return {int(k): row["accuracy"] for k, row in self.result["per_client"].items()}


@dataclass(frozen=True)
class Folds(Run):
    """The folds of a seed as one run: numbers are means over them, and what is no number is the
    first one's."""

    folds: tuple[Run, ...] = ()

    @cached_property
    def rounds(self) -> list[RoundRow]:
        return [_mean(rows) for rows in zip(*(run.rounds for run in self.folds), strict=False)]

    def judged_by(self, score: str) -> Run:
        return mean_of_folds([run.judged_by(score) for run in self.folds])

    @property
    def validation(self) -> float:
        return fmean(run.validation for run in self.folds)

    def validation_by(self, score: str) -> tuple[float, float]:
        first, second = zip(*(run.validation_by(score) for run in self.folds), strict=True)
        return fmean(first), fmean(second)

    @cached_property
    def right_rows(self) -> dict[int, RightRows]:
        return {}  # each fold has its own

    @cached_property
    def sites_at_best(self) -> dict[str, Mapping[str, Any]]:
        return _mean([run.sites_at_best for run in self.folds])


def mean_of_folds(folds: Sequence[Run]) -> Run:
    """Those of one seed as one run."""
    result = _mean([run.result for run in folds])
    best = result["accuracy"]
    best["best_validation_round"] = round(best["best_validation_round"])
    return Folds(folds[0].directory, result, folds[0].target, tuple(folds))


def _mean(values: Sequence[Any]) -> Any:
    """Numbers' mean, in each place; where they are not all there, or are no numbers, the first."""
    first = values[0]
    if all(value == first for value in values):
        return first
    if all(isinstance(value, Mapping) for value in values):
        names = [name for name in first if all(name in value for value in values)]
        return {name: _mean([value[name] for value in values]) for name in names}
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return fmean(numbers) if len(numbers) == len(values) else first


NOT_RUN = "not run"
OTHER_CODE = "other code"
DIVERGED = "diverged"
NO_BUDGET = "no budget"
EXTENDED = "extended"
SHORTER = "shorter"


@dataclass(frozen=True)
class Missing:
    """A run that is not completed, or does not count. status: `not run`, `unfinished`, `shorter` if
    it is completed with fewer rounds than it is to have, `failed` (by itself or its observer),
    `stopped`, `no budget` if its privacy budget allows no further round, `diverged`, `extended` or,
    beside newer runs by other code of the user's, `other code`; reason: the same with its cause.
    path: its directory; None where none is chosen yet."""

    status: str
    reason: str
    path: Path | None = field(default=None, compare=False)

    @property
    def final(self) -> bool:
        """Whether running it again would come to the same."""
        return self.status in (DIVERGED, OTHER_CODE, NO_BUDGET, EXTENDED)


def read_run(path: Path, rounds: int | None = None) -> Run | Missing:
    """The run in a directory. rounds: that it is to have; a completed run of fewer is unfinished,
    and one of more is not to be averaged with others."""
    directory = RunDirectory(path)
    result = directory.result()
    if result is None:
        rows = directory.rounds()
        if not rows:
            return Missing(NOT_RUN, NOT_RUN, path)
        return Missing("unfinished", f"unfinished after round {rows[-1]['round']}", path)
    if result["status"] == DIVERGED:
        return Missing(DIVERGED, f"{DIVERGED} (round {result['diverged_in']})", path)
    if result["status"] != "completed":
        by = result.get("stopped_by")
        word = NO_BUDGET if by == SPENT else result["status"]
        return Missing("failed" if by == "observer" else word, f"{word}: {result['error']}", path)
    done = result["rounds"]
    if rounds is not None and done < rounds and "ended_early" not in result:
        return Missing(SHORTER, f"unfinished after round {done} of {rounds}", path)
    if rounds is not None and done > rounds:
        return Missing(EXTENDED, f"{EXTENDED} to {done} rounds, of {rounds} here", path)
    return Run(directory, result)
