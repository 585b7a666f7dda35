"""Observers of rounds: they are told of a run's start, of each round's result, and of its end.

An observer changes no result. What it raises stops nothing: the log and `result.json` name it once.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pfedlora_flwr.errors import brief
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.runs.rows import Result, RoundRow, StoppedBy

logger = logging.getLogger(__name__)
_PATIENCE = 5.0


class Observer:
    """The contract: each method does nothing unless an observer defines it."""

    stopped_by: StoppedBy = "observer"
    """What `result.json` names where this observer's reason stops the run."""

    def begin(self, keys: Mapping[str, Scalar]) -> None:
        """The run begins, or goes on where `resume` is true.

        Args:
            keys: every key of the run by its full name; `output` is the run's directory, with the
                lines of the rounds that are done.
        """

    def round(self, row: RoundRow) -> str | None:
        """A round is done, and its checkpoint is on disk.

        Args:
            row: its line of `rounds.jsonl`.

        Returns:
            A reason to stop the run after this round, in a line; `--resume` goes on with it. None:
            the run goes on.
        """
        return None

    def end(self, result: Result) -> None:
        """The run has ended, whatever became of it. A server that is killed ends without.

        Args:
            result: what `result.json` will hold; of a server that is asked to stop, `status` and
                `error` alone.
        """

    def report(self, keys: Mapping[str, Scalar], folder: Path) -> None:
        """`pfedlora report` has written a report of this run alone, in a process of its own.

        Args:
            keys: as for `begin`.
            folder: the report's.
        """


class RunStopped(RuntimeError):
    """An observer's reason has stopped the run, or its budget of privacy has. What is done is on
    disk; `--resume` continues after the former."""

    def __init__(self, reason: str, by: StoppedBy) -> None:
        super().__init__(reason)
        self.by = by


class Observers:
    """All observers of a run, told in turn.

    failed: by the name of an observer that has raised, its first error in a line. It is told of
    what comes next all the same, unless it took `_PATIENCE` seconds to fail, as one does whose
    server is down.
    """

    def __init__(self, named: Mapping[str, Observer]) -> None:
        self._named = named
        self._ended = False
        self._given_up = set[str]()
        self.failed: dict[str, str] = {}

    def begin(self, keys: Mapping[str, Scalar]) -> None:
        """Tells each that the run begins."""
        for name, observer in self._named.items():
            self._ask(name, observer.begin, keys)

    def round(self, row: RoundRow) -> RunStopped | None:
        """Tells each of a round's line; the first reason to stop that one has."""
        stops = []
        for name, observer in self._named.items():
            reason = self._ask(name, observer.round, row)
            if isinstance(reason, str) and reason:
                by = getattr(observer, "stopped_by", Observer.stopped_by)
                said = reason if by != Observer.stopped_by else f"stopped by {name}: {reason}"
                stops.append(RunStopped(" ".join(said.split()), by))
            elif reason not in (None, ""):
                self._fail(name, TypeError(f"round returned {reason!r}, expected None or a text"))
        return next(iter(stops), None)

    def end(self, result: Result) -> None:
        """Tells each that the run has ended, and how; once. The result gets what has failed."""
        if not self._ended:
            self._ended = True
            for name, observer in self._named.items():
                self._ask(name, observer.end, result)
        result.pop("observers", None)
        if self.failed:
            result["observers"] = self.failed

    def report(self, keys: Mapping[str, Scalar], folder: Path) -> None:
        """Tells each of a report of the run; a user's own need not have such a method."""
        for name, observer in self._named.items():
            told = getattr(observer, "report", Observer().report)
            self._ask(name, partial(told, folder=folder), keys)

    def _ask(self, name: str, tell: Callable[[Any], Any], about: Mapping[str, Any]) -> Any:
        begun = time.monotonic()
        try:
            # each has one of its own
            return None if name in self._given_up else tell(copy.deepcopy(dict(about)))
        except (Exception, SystemExit) as error:
            if time.monotonic() - begun > _PATIENCE:
                self._given_up.add(name)
            self._fail(name, error)
            return None

    def _fail(self, name: str, error: BaseException) -> None:
        if name not in self.failed:
            self.failed[name] = brief(error)
            logger.warning(
                "observer %s failed, and the run continues: %s",
                name,
                self.failed[name],
                exc_info=error,
            )
