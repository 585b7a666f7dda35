"""A run on a SuperLink that is already there, and that others own: submitted, followed by its log,
and judged at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.files import whole_lines
from pfedlora_flwr.launch.flower import FlwrCommand, LaunchError, environment, write_app
from pfedlora_flwr.launch.superlink import find_connection, why_unreachable
from pfedlora_flwr.runs.result import FOR_PROGRAMS, LINE, result_in

_PATIENCE, _LOOK, _PAUSE = 120.0, 60.0, 2.0
"""Seconds: without an answer before the SuperLink counts as gone, without a line before a look at
the log ends, between two."""


class Submission:
    """One run on the nodes of `superlink`, a connection in Flower's config.toml. Its app and its
    log lie in `folder`."""

    def __init__(self, superlink: str, folder: Path) -> None:
        self._connection = find_connection(superlink)
        self.folder = folder
        self.log = folder / "run.log"
        self.run_id = ""
        self._flwr = FlwrCommand(superlink, environment(PYTHONUNBUFFERED="1"), folder / "flwr.log")

    def start(self, config: RunConfig) -> None:
        """Submits the run. Raises LaunchError when the SuperLink does not take it, with what bars
        the way to it."""
        try:
            self.run_id = self._flwr.run(write_app(self.folder / "app", config))
        except LaunchError as failure:
            if why := why_unreachable(self._connection):
                raise LaunchError(why) from failure
            raise

    def follow(self, tell: Callable[[str], None]) -> None:
        """Tells the ServerApp's own lines until the run is over. Raises LaunchError when the
        SuperLink is gone for long."""
        told, answered = 0, time.monotonic()
        while True:
            told = self._stream(told, tell)
            try:
                if self.status().startswith("finished"):
                    self._stream(told, tell)
                    return
                answered = time.monotonic()
            except LaunchError as failure:
                if time.monotonic() > answered + _PATIENCE:
                    why = why_unreachable(self._connection) or str(failure)
                    raise LaunchError(
                        f"{why}; what became of the run, `pfedlora status` of its output says on"
                        " the SuperLink's host, and resume=true continues it"
                    ) from failure
            time.sleep(_PAUSE)

    def status(self) -> str:
        """What Flower says of the run, such as `finished:completed`. Raises LaunchError when it
        says nothing."""
        return self._flwr.status(self.run_id)

    def result(self) -> dict[str, Any] | None:
        """What the ServerApp printed at its end: its directory and its result.json."""
        with self.log.open(errors="replace") as log:
            return result_in(log)

    def stop(self) -> str:
        """Stops the run; says what came of that."""
        if not self.run_id:
            return "stopped by the user while submitting; `flwr list` says whether the run began"
        try:
            self._flwr.stop(self.run_id)
            if self.status().startswith("finished"):
                return "stopped"
        except LaunchError as failure:
            return f"the run could not be stopped ({failure}); `flwr stop {self.run_id}` does it"
        return f"the run goes on: `flwr stop {self.run_id}` stops it"

    def _stream(self, told: int, tell: Callable[[str], None]) -> int:
        """Keeps the run's log until it ends, the connection breaks or no line came for a while;
        tells those lines after the first `told` that are ours, and returns how many lines there
        are. Flower sends the log from its beginning each time."""
        lines, last = 0, time.monotonic()
        with self.log.open("wb") as log:
            streaming = self._flwr.stream(self.run_id, log)
        try:
            with self.log.open("rb") as log:
                while True:
                    over = streaming.poll() is not None or time.monotonic() > last + _LOOK
                    for line in whole_lines(log):
                        lines, last = lines + 1, time.monotonic()
                        said = line.decode(errors="replace")
                        if (
                            lines > told
                            and said.startswith(LINE)
                            and not said.startswith(FOR_PROGRAMS)
                        ):
                            tell(said.removeprefix(LINE).rstrip())
                    if over:
                        return max(told, lines)
                    time.sleep(0.3)
        finally:
            streaming.terminate()
            streaming.wait()
