"""The key `max-hours`, for the time limits of batch systems: the run stops in time and can be
resumed."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.observers.observer import Observer
from pfedlora_flwr.runs.rows import RoundRow


class MaxHours(Observer):
    """Stops the run after the round in which so many hours are over. Each start does a round."""

    stopped_by = "time"

    def __init__(self, hours: float) -> None:
        self._hours = hours

    def begin(self, keys: Mapping[str, Scalar]) -> None:
        self._began = time.monotonic()

    def round(self, row: RoundRow) -> str | None:
        over = time.monotonic() - self._began >= self._hours * 3600
        return (
            f"stopped, since max-hours={self._hours:g} are over" if over and row["round"] else None
        )
