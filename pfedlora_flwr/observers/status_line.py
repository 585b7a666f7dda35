"""The run's status as a line of Flower's log after each round, for `pfedlora status --superlink`:
the run's directory is on its server's host, and whoever asks may be on another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.observers.observer import Observer
from pfedlora_flwr.runs.layout import RunFiles
from pfedlora_flwr.runs.result import STATUS_LINE
from pfedlora_flwr.runs.rows import RoundRow
from pfedlora_flwr.runs.status import failing_first, status_of

_LISTED = 20
"""Clients in a line: Flower keeps the whole log."""


class StatusLine(Observer):
    """A line at the beginning, and one after each round."""

    def begin(self, keys: Mapping[str, Scalar]) -> None:
        self._run = RunFiles(Path(str(keys["output"])))
        self._standing = self._run.standing()
        self._print()

    def round(self, row: RoundRow) -> None:
        self._print()

    def _print(self) -> None:
        status = status_of(self._run, "running", None, self._standing.look())
        status["per_client"] = failing_first(status, _LISTED)
        print(STATUS_LINE + json.dumps(status), flush=True)
