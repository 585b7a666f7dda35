"""Where results go: every default folder is named here, and the path that was given instead is checked."""

from __future__ import annotations

import time
from pathlib import Path

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.files import absolute

_RUNS = Path("runs")


def of_run(experiment: Experiment, conf: Path | None) -> Path:
    """The directory of a run that `pfedlora run` starts: `output`, or runs/NAME in the current folder, by the file's name."""
    return Path(experiment.output or _RUNS / (conf.stem if conf else experiment.default_name))


def of_comparison(conf: Path) -> Path:
    """The default directory of a comparison: runs/FOLDER-NAME. conf/paper/table2.yaml and conf/quick/table2.yaml are two comparisons."""
    folder = conf.absolute().parent
    alone = folder.name == "conf" or folder == Path.cwd()
    return _RUNS / (conf.stem if alone else f"{folder.name}-{conf.stem}")


def on_the_server(experiment: Experiment) -> Path:
    """The directory of a run as its server takes it. Without `output`: a new one under ~/.pfedlora/runs.

    Raises UserError for a relative path, and where a run is to be resumed without one.
    """
    if experiment.output:
        if not experiment.output.startswith(("/", "~")):
            raise UserError(
                f"output is {experiment.output!r}; allowed: an absolute path (the app does not run in your folder)"
            )
        return absolute(experiment.output)
    if experiment.resume:
        raise UserError("resume needs output, the directory of the run to continue")
    return (
        Path.home()
        / ".pfedlora"
        / "runs"
        / f"{experiment.default_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    )


def from_here(directory: Path) -> Path:
    """The directory as it is named from this folder."""
    return directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
