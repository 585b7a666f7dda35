"""The Experiment of a resumed run: the one on disk, with what this call may change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pfedlora_flwr import config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution, RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.files import absolute
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.extension import unused_rounds
from pfedlora_flwr.runs.joining import check_join
from pfedlora_flwr.runs.output import of_run

Flat = Mapping[str, object]
_ACCEPTED = "accept-changed-code"


def resumed_output(named: Flat, conf: Path | None) -> Path:
    """The directory of the run that these keys mean, which need not be all of its keys. Raises
    UserError for a wrong one."""
    values = config.parse(named)
    execution = Execution.of(values)
    config.check_way(execution)
    output = of_run(RunConfig(Experiment.of(values), execution), conf)
    absolute(output)
    return output.expanduser()


def resumed(run: RunDirectory, conf: Flat, options: Flat, conf_name: str) -> tuple[RunConfig, str]:
    """The keys of `run` with those that a resumed run may change, and a line on the
    `rounds` of CONF where they are not used.

    conf: the keys that CONF names. options: those given by -o, which win; `rounds` among them
    extends the run. Raises UserError, with the names, for any other key that can change a result
    and is not what the run has."""
    run.check_resumable()
    saved = run.experiment()
    named = {
        name: value
        for name, value in {**conf, **options}.items()
        if name != "rounds" or name in options
    }
    if (clients := config.parse(named).get("clients", saved.clients)) != saved.clients:
        check_join(run, saved, clients)
    check_unchanged(saved, named, run.path)
    going_on = config.run_config(
        {**run.saved_keys(), "overwrite": False, _ACCEPTED: False, **named}
    )
    in_conf = config.parse({} if "rounds" in options else conf).get("rounds", saved.rounds)
    return going_on, unused_rounds(in_conf, saved.rounds, conf_name)


def check_unchanged(saved: Experiment, named: Flat, path: Path) -> None:
    """Raises UserError, with the keys as `key: was → is`, where a named one differs and can change
    a result; `rounds` and `clients-left`, which grow, are not looked at."""
    before, changed = saved.keys(), []
    for name, value in config.parse(named).items():
        # of the Execution, or another method's option: a run leaves it out
        if name not in before or name in ("rounds", "clients-left"):
            continue
        key, was = before[name]
        wanted = config.located_value(key, value)
        if wanted != was:
            changed.append(f"{name}: {key.text(was)!r} → {key.text(wanted)!r}")
    if changed:
        raise UserError(
            f"output {str(path)!r} holds a different Experiment ({'; '.join(changed)}); resume it"
            f" with its own keys: without CONF, by output={path}"
        )
