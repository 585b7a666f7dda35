"""`pfedlora run --superlink`: the same run on real nodes, through a SuperLink that is already there.

`flwr run` exits 0 whatever becomes of a run. This submits one, shows it, and judges it twice: by what Flower says of the run, and by
the result that the ServerApp prints as its last line, since its directory is on the SuperLink's host.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

from rich.console import Console

from pfedlora_flwr.commands.display import FAILED, INTERRUPTED, conclude
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.launch.flower import LaunchError, last_line
from pfedlora_flwr.launch.processes import on_terminate
from pfedlora_flwr.launch.submission import Submission


def submit(experiment: Experiment, superlink: str, out: Console, err: Console, *, quiet: bool = False) -> int:
    """Runs the Experiment on the nodes of `superlink`, a connection in Flower's config.toml; returns the exit code, 0 only for a
    completed run. Ctrl-C and SIGTERM stop the run; a terminal that is closed does not."""
    on_terminate(signal.SIGTERM)
    folder = Path(tempfile.mkdtemp(prefix="pfedlora-"))
    submission = Submission(superlink, folder)

    def tell(line: str) -> None:
        if not quiet:
            out.print(line, markup=False, highlight=False, soft_wrap=True)

    try:
        submission.start(experiment)
        out.print(f"run {submission.run_id} on {superlink}: Ctrl-C stops it", highlight=False)
        submission.follow(tell)
        status, last = submission.status(), submission.result()
        if last is None or (last["result"]["status"] == "completed") != (status == "finished:completed"):
            raise LaunchError(f"Flower says {status}; the ServerApp said last: {last_line(submission.log)}")
    except KeyboardInterrupt:
        err.print(submission.stop(), markup=False, highlight=False)
        code = INTERRUPTED
    except LaunchError as failure:  # the folder stays: it has the logs that this names
        err.print(f"failed: {failure}", markup=False, highlight=False)
        return FAILED
    else:
        code = conclude(last["result"], last["directory"] + " on the SuperLink's host", out, err)
    shutil.rmtree(folder, ignore_errors=True)
    return code
