"""Output paths: every default folder is named here, and a path given instead is checked."""

from __future__ import annotations

import re
import time
from pathlib import Path

from pfedlora_flwr.errors import UserError, permissions, wrong
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.files import absolute
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.models.given import UNNAMED

_RUNS, _DEFAULT = Path("runs"), Path("~/.pfedlora/runs")
_GIVEN = re.compile(f"{UNNAMED}-")
"""What stands before the name of an object that the Python API was given (`models.given`)."""
_FOLDERS = re.compile(r"""(?<![^\s=,:'"])~?/(?!/)(?:[^/=,\s'"]+/)*""")
"""Of a path from the root or from home, as a model's name and the options of a user's method may
hold one."""


def of_run(config: RunConfig, conf: Path | None) -> Path:
    """The directory of a run that `pfedlora run` starts: `output`, or runs/NAME in the current
    folder, by the file's name."""
    name = conf.stem if conf else _GIVEN.sub("", config.experiment.default_name)
    return Path(config.execution.output or _RUNS / name)


def of_comparison(conf: Path) -> Path:
    """The default directory of a comparison: runs/FOLDER-NAME. conf/paper/table2.yaml and
    conf/quick/table2.yaml are two comparisons."""
    folder = conf.absolute().parent
    alone = folder.name == "conf" or folder == Path.cwd()
    return _RUNS / (conf.stem if alone else f"{folder.name}-{conf.stem}")


def on_the_server(config: RunConfig) -> Path:
    """The directory of a run as its server takes it. Without `output`: a new one under
    ~/.pfedlora/runs, by the method's name, since the data may be the nodes' own.

    Raises UserError for a relative path or one that is not allowed, and where a run is to be
    resumed without one.
    """
    output = config.execution.output
    if output:
        if not output.startswith(("/", "~")):
            raise wrong("output", output, "an absolute path (the app does not run in your folder)")
        permissions.check_file("output", output, permissions.OUTPUT)
        return absolute(output)
    if config.execution.resume:
        raise UserError("resume needs output, the directory of the run to continue")
    return (
        _DEFAULT.expanduser()
        / f"{config.experiment.method.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    )


def home() -> Path:
    """The folder of a server's comparisons: its output-root, or ~/.pfedlora/runs."""
    return Path(permissions.output_root() or _DEFAULT).expanduser()


def from_here(directory: Path) -> Path:
    """The directory as it is named from this folder."""
    return directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory


def without_folders(value: Scalar) -> Scalar:
    """A key's value for people who have not this machine: of each path its last name alone."""
    return _FOLDERS.sub("", value) if isinstance(value, str) else value
