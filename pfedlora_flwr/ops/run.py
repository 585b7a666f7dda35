"""The keys of a run, before `launch/execute.py` carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pfedlora_flwr import config
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.launch.checks import Say
from pfedlora_flwr.runs.begin import resumed, resumed_output
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.output import of_run


def configured(
    path: Path | None,
    of_conf: Mapping[str, object],
    options: Mapping[str, object],
    conf_name: str,
    say: Say,
) -> RunConfig:
    """The keys of a run here, a resumed one's taken from its directory. Raises UserError.

    path, of_conf: the file CONF, if it is one, and its keys. options: those that win. say: takes
    what is to be said of them."""
    named = {**of_conf, **options}
    if named.get("resume") is True:
        output = resumed_output(named, path)
        wanted, unused = resumed(RunDirectory(output), of_conf, options, conf_name)
        if unused:
            say(unused)
    else:
        wanted = config.run_config(named)
        output = of_run(wanted, path)
    # a file may hold other methods' options, too
    of_file = [
        name
        for name, (key, value) in wanted.keys().items()
        if name in of_conf and name not in options and value != key.default
    ]
    for line in config.unused([*options, *of_file], wanted):
        say(f"warning: {line}")
    return config.located(wanted, output)
