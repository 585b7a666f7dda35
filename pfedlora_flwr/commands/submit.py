"""`pfedlora run --superlink`: the same run on real nodes, through a SuperLink that is already there.

`flwr run` exits 0 whatever becomes of a run. This submits one, shows it, and judges it twice: by what Flower says of the run, and by
the result that the ServerApp prints as its last line, since its directory is on the SuperLink's host.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from pfedlora_flwr.commands.run import FAILED, INTERRUPTED, conclude, on_terminate
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.launch.simulation import QUIET, LaunchError, last_line, tool, write_app
from pfedlora_flwr.runs.result import LINE, RESULT_LINE

_PATIENCE, _LOOK, _PAUSE, _CALL = 120.0, 60.0, 2.0, 60.0
"""Seconds: without an answer before the SuperLink counts as gone, for one look at the log, between two looks, and for one question."""


def submit(experiment: Experiment, superlink: str, out: Console, err: Console, *, quiet: bool = False) -> int:
    """Runs the Experiment on the nodes of `superlink`, a connection in Flower's config.toml; returns the exit code, 0 only for a
    completed run. Ctrl-C and SIGTERM stop the run; a terminal that is closed does not. Raises UserError or returns a failure before
    anything has started."""
    on_terminate(signal.SIGTERM)
    with tempfile.TemporaryDirectory(prefix="pfedlora-") as folder:
        submission = Submission(superlink, Path(folder))
        try:
            submission.start(experiment)
            out.print(f"run {submission.run_id} on {superlink}: Ctrl-C stops it", highlight=False)
            submission.follow(out, quiet)
            status = submission.status()
        except KeyboardInterrupt:
            err.print(submission.stop(), markup=False, highlight=False)
            return INTERRUPTED
        except LaunchError as failure:
            err.print(f"failed: {failure}", markup=False, highlight=False)
            return FAILED
        last = submission.result()
        if last is None or (last["result"]["status"] == "completed") != (status == "finished:completed"):
            err.print(f"failed: Flower says {status}; the ServerApp said last: {last_line(submission.log)}", markup=False, highlight=False)
            return FAILED
        return conclude(last["result"], last["directory"] + " on the SuperLink's host", out, err)


class Submission:
    """One run on a SuperLink that others own, by way of the `flwr` command."""

    def __init__(self, superlink: str, folder: Path) -> None:
        self.superlink = superlink
        self.folder = folder
        self.log = folder / "run.log"
        self.run_id = ""

    def start(self, experiment: Experiment) -> None:
        """Submits the run. Raises LaunchError when the SuperLink does not take it."""
        app = write_app(self.folder / "app", experiment)
        self.run_id = str(self._json("run", str(app), self.superlink)["run-id"])

    def follow(self, out: Console, quiet: bool) -> None:
        """Shows the ServerApp's own lines until the run is over. Raises LaunchError when the SuperLink is gone for long."""
        shown, answered = 0, time.monotonic()
        while True:
            shown = self._stream(shown, out, quiet)
            try:
                if self.status().startswith("finished"):
                    self._stream(shown, out, quiet)
                    return
                answered = time.monotonic()
            except LaunchError:
                if time.monotonic() > answered + _PATIENCE:
                    raise
            time.sleep(_PAUSE)

    def status(self) -> str:
        """What Flower says of the run, such as `finished:completed`. Raises LaunchError when it says nothing."""
        try:
            return str(self._json("list", self.superlink, "--run-id", self.run_id)["runs"][0]["status"])
        except (KeyError, IndexError, TypeError):
            raise LaunchError(f"Flower does not know run {self.run_id}") from None

    def result(self) -> dict[str, Any] | None:
        """What the ServerApp printed at its end: its directory and its result.json."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith(RESULT_LINE)]
        return json.loads(lines[-1].removeprefix(RESULT_LINE)) if lines else None

    def stop(self) -> str:
        """Stops the run; says what came of that."""
        if not self.run_id:
            return "stopped by the user while submitting; `flwr list` says whether the run began"
        try:
            self._call("stop", self.run_id, self.superlink)
            if self.status().startswith("finished"):
                return "stopped: stopped by the user; continue it with --resume"
        except LaunchError as failure:
            return f"the run could not be stopped ({failure}); `flwr stop {self.run_id}` does it"
        return f"the run goes on: `flwr stop {self.run_id}` stops it"

    def _stream(self, shown: int, out: Console, quiet: bool) -> int:
        """Keeps the run's log until it ends, the connection breaks or a while has passed; prints those lines after the first `shown`
        that are ours, and returns how many lines there are. Flower sends the log from its beginning each time."""
        command = [tool("flwr"), "log", self.run_id, self.superlink, "--stream"]
        until = time.monotonic() + _LOOK
        with self.log.open("wb") as log:
            streaming = subprocess.Popen(command, env=_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.DEVNULL)
        try:
            while True:
                over = streaming.poll() is not None or time.monotonic() > until
                lines = self.log.read_text(errors="replace").splitlines(keepends=True)
                for line in lines[shown:] if not quiet else ():
                    if line.endswith("\n"):
                        shown += 1
                        if line.startswith(LINE) and not line.startswith(RESULT_LINE):
                            out.print(line.removeprefix(LINE).rstrip(), markup=False, highlight=False, soft_wrap=True)
                if over:
                    return shown
                time.sleep(0.3)
        finally:
            streaming.terminate()
            streaming.wait()

    def _json(self, *words: str) -> dict[str, Any]:
        done = self._call(*words, "--format", "json")
        try:
            return json.loads(done.stdout)
        except ValueError:
            failed = self.folder / "flwr.log"
            failed.write_text(done.stdout + done.stderr)
            raise LaunchError(f"`flwr {words[0]}` failed: {last_line(failed)}") from None

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [tool("flwr"), *words]
        try:
            return subprocess.run(
                command, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_CALL, check=False
            )
        except subprocess.TimeoutExpired:
            raise LaunchError(f"`flwr {words[0]}`: the SuperLink {self.superlink!r} did not answer within {_CALL:g} s") from None


def _environment() -> dict[str, str]:
    return os.environ | QUIET | {"PYTHONUNBUFFERED": "1"}
