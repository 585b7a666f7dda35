"""Carries the runs of a comparison out on real nodes, one after the other: each is an ordinary
submission, followed to its end and copied to the comparison's directory."""

from __future__ import annotations

import shutil
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.launch.checks import Say
from pfedlora_flwr.launch.execute import STOPPED, Show
from pfedlora_flwr.launch.flower import LaunchError, last_line
from pfedlora_flwr.launch.processes import Stopped
from pfedlora_flwr.launch.submission import Submission
from pfedlora_flwr.runs.comparison_run import keep, name_of
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.rows import Result


@dataclass(frozen=True)
class Network:
    """The nodes of a SuperLink, a connection in Flower's config.toml, for the comparison in the
    folder `output`."""

    superlink: str
    output: Path

    def execute(self, config: RunConfig, show: Show, say: Say) -> Result:
        """A run to its end, whatever came of it. One that failed goes on as long as it does rounds:
        its nodes may come back. Raises UserError where the SuperLink is not reached."""
        run, seen = RunDirectory(Path(config.execution.output)), set[int]()
        while True:
            result = self._carried_out(config, run, say)
            done = len(run.rounds())
            if result["status"] != "failed" or not result.get("resumable") or done in seen:
                return result
            seen.add(done)
            say(f"{result['error']}; it goes on after {done} rounds")
            config = going_on(config)

    def _carried_out(self, config: RunConfig, run: RunDirectory, say: Say) -> Result:
        folder = Path(tempfile.mkdtemp(prefix="pfedlora-"))
        submission = Submission(self.superlink, folder)
        try:
            if not _goes_on(run, submission):
                name = name_of(run, self.output)
                submission.start(config.executed(output="", comparison_run=name, resume=False))
                run.logs.mkdir(parents=True, exist_ok=True)
                write_atomically(run.submitted_file, submission.run_id.encode())
            submission.follow(lambda line: say(f"  {line}"))
            told, status = submission.result(), submission.status()
            with submission.log.open(errors="replace") as log:
                kept = keep(run, log)
        except Stopped as stop:
            error, by = STOPPED[stop.number]
            if stop.number != signal.SIGHUP:  # a terminal that is closed leaves it going
                say(submission.stop())
            return {"status": "stopped", "error": error, "stopped_by": by}
        except LaunchError as failure:
            raise UserError(f"{failure}; then the same command goes on") from None
        finally:
            said = last_line(submission.log).partition(f" (see {folder}")[0]
            shutil.rmtree(folder, ignore_errors=True)
        if told is None:
            error = f"Flower says {status}; the server said last: {said}"
            return {"status": "failed", "error": error, "resumable": True}
        found: Result = told["result"]
        if found["status"] == "completed" and not kept:
            return {"status": "failed", "error": "it is completed, and its lines did not come back"}
        return found


def going_on(config: RunConfig) -> RunConfig:
    """The run as its server takes it up: by what it finds there."""
    return config.executed(overwrite=False)


def _goes_on(run: RunDirectory, submission: Submission) -> bool:
    """Whether the run that was submitted last, by a launcher that is gone, is not over: then it is
    followed."""
    with suppress(OSError, LaunchError):
        submission.run_id = run.submitted_file.read_text()
        return not submission.status().startswith("finished")
    submission.run_id = ""
    return False
