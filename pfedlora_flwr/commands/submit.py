"""`pfedlora run --superlink`: the same run on real nodes, through an existing SuperLink.

`flwr run` exits 0 whatever becomes of a run. This submits one, shows it, and judges it twice: by
what Flower says of the run, and by the result that the ServerApp prints as its last line, since its
directory is on the SuperLink's host."""

from __future__ import annotations

import shlex
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pfedlora_flwr.commands.display import FAILED, conclude, stopped_code
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.launch.execute import STOPPED
from pfedlora_flwr.launch.flower import LaunchError, last_line
from pfedlora_flwr.launch.processes import Stopped, stoppable
from pfedlora_flwr.launch.submission import Submission
from pfedlora_flwr.launch.superlink import find_connection
from pfedlora_flwr.runs.result import LINE
from pfedlora_flwr.runs.rows import StoppedBy
from pfedlora_flwr.runs.status import LOST


def submit(
    config: RunConfig,
    superlink: str,
    out: Console,
    err: Console,
    words: Sequence[str],
    *,
    quiet: bool = False,
) -> int:
    """Runs the Experiment on the nodes of `superlink`, a connection in Flower's config.toml;
    returns the exit code, 0 only for a completed run. Ctrl-C and SIGTERM stop the run; a terminal
    that is closed does not.

    words: of this command, for the one that continues the run.
    """
    find_connection(superlink)
    config.execution.check_lanes()
    folder = Path(tempfile.mkdtemp(prefix="pfedlora-"))
    submission = Submission(superlink, folder)

    def tell(line: str) -> None:
        if not quiet:
            out.print(line, soft_wrap=True)

    try:
        with stoppable(signal.SIGINT, signal.SIGTERM):
            try:
                submission.start(config)
                out.print(f"run {submission.run_id} on {superlink}: Ctrl-C stops it")
                submission.follow(tell)
                status, last = submission.status(), submission.result()
            except Stopped as stop:
                out.print("stopping…")
                err.print(submission.stop())
                return _stopped(config, words, err, folder, STOPPED[stop.number][1])
        if last is None and status == "finished:stopped":
            err.print("stopped through Flower")
            return _stopped(config, words, err, folder, "user")
        if last is None or (last["result"]["status"] not in ("failed", "diverged")) != (
            status == "finished:completed"
        ):
            said = last_line(submission.log)
            if last is None and said.startswith(LINE):
                raise LaunchError(f"{LOST}; it said last: {said.removeprefix(LINE)}")
            raise LaunchError(f"Flower says {status}; the ServerApp said last: {said}")
    except LaunchError as failure:
        if str(folder) not in str(failure):  # else it stays, with the logs that this names
            shutil.rmtree(folder, ignore_errors=True)
        err.print(f"failed: {failure}")
        return FAILED
    place = last["directory"]
    code = conclude(
        last["result"], f"{place} on the SuperLink's host", out, err, again(words, place)
    )
    shutil.rmtree(folder, ignore_errors=True)
    return code


def _stopped(
    config: RunConfig, words: Sequence[str], err: Console, folder: Path, by: StoppedBy
) -> int:
    """Says how a stopped run goes on; the exit code."""
    command = again(words, config.execution.output or "DIR")
    err.print(f"to continue: {command}")
    if not config.execution.output:
        err.print("DIR is the directory that the run's first line names")
    shutil.rmtree(folder, ignore_errors=True)
    return stopped_code({"status": "stopped", "error": None, "stopped_by": by})


def again(words: Sequence[str], output: str) -> str:
    """The command that continues the run in `output` on the SuperLink's host: the same words, ready
    to paste."""
    kept = [word for word in words if word not in ("--overwrite", "--resume")]
    place = [] if any("output=" in word for word in kept) else ["-o", f"output={output}"]
    return shlex.join(["pfedlora", *kept, *place, "--resume"])
