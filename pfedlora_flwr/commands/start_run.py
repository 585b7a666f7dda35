"""`pfedlora run`, from its arguments to its exit code: the keys that they mean, and where it
runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pfedlora_flwr import config
from pfedlora_flwr.commands.dry_run import dry_run
from pfedlora_flwr.commands.run import run
from pfedlora_flwr.commands.submit import submit
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.files import absolute
from pfedlora_flwr.launch.secagg_plan import of_keys
from pfedlora_flwr.launch.superlink import find_connection
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.output import of_run
from pfedlora_flwr.runs.resume import check_unchanged, resumed, resumed_output
from pfedlora_flwr.runs.without import Anew

SITES = {"classes", "input-shape", "data.class-names"}
"""Keys that say what data of the sites' own is like."""


@dataclass(frozen=True)
class Words:
    """What `pfedlora run` was given: CONF, the texts of -o and of flags that set keys, and the
    other flags."""

    conf: str | None
    options: list[str]
    port: int
    quiet: bool
    dry_run: bool
    engine: str
    superlink: str | None
    without: int | None = None


def start(words: Words, out: Console, err: Console) -> int:
    """Carries the run out, here or on nodes; the exit code. Raises UserError before anything has
    started."""
    if words.without is not None:
        return _without(words, words.without, out, err)
    path = config.find_conf(words.conf) if words.conf is not None else None
    of_conf = config.read_run(path) if path else {}
    options = config.parse_overrides(words.options)
    named = of_conf | options
    if options.get("accept-changed-code") is True and named.get("resume") is not True:
        raise UserError("--accept-changed-code needs --resume")
    if words.superlink is not None:
        _check_superlink(words, named)
        return _on_nodes(words, words.superlink, named, options, out, err)
    try:
        return _here(words, configured(path, of_conf, options, str(words.conf), out), out, err)
    except UserError as error:
        if "dataset" in named or "resume" in named or SITES.isdisjoint(of_conf):
            raise
        raise UserError(
            f"{error}; without --superlink this run is a simulation, of dataset"
            f" {Experiment().dataset!r}"
        ) from None


def _here(words: Words, wanted: RunConfig, out: Console, err: Console) -> int:
    """A simulation."""
    if words.dry_run:
        dry_run(wanted, out, engine=words.engine)
        return 0
    return run(wanted, out, err, port=words.port, quiet=words.quiet, engine=words.engine)


def _check_superlink(words: Words, named: Mapping[str, object]) -> None:
    if words.superlink == "":
        raise UserError("--superlink is ''; allowed: a connection in $FLWR_HOME/config.toml")
    if words.engine != "flower":
        raise UserError(
            f"--engine {words.engine} trains in this process, --superlink on nodes: give only one"
        )
    if named.get("ray"):
        raise UserError("ray is for simulations, --superlink for real nodes: give only one")
    if words.port:
        raise UserError(
            "--port is for simulations: a connection has its address in Flower's config.toml"
        )
    if words.dry_run:
        raise UserError("--dry-run is for simulations: only the nodes know what they have")


def _on_nodes(
    words: Words,
    superlink: str,
    named: Mapping[str, object],
    options: Iterable[str],
    out: Console,
    err: Console,
) -> int:
    """The run on the nodes of a SuperLink; `output` is a path on that one's host."""
    wanted = config.run_config(named)
    # `data.` keys are of the nodes' data
    of_here = [name for name in options if not name.startswith("data.")]
    _name_unused(config.unused(of_here, wanted), out)
    for line in of_keys(wanted):
        out.print(line, soft_wrap=True)
    return submit(wanted, superlink, out, err, sys.argv[1:], quiet=words.quiet)


def _without(words: Words, client: int, out: Console, err: Console) -> int:
    """A run of sites with data of their own, trained anew without one of them."""
    options = config.parse_overrides(words.options)
    if options.pop("resume", False) is not True or words.conf is None:
        raise UserError("--without needs --resume and the run's directory in the place of CONF")
    output = options.pop("output", "")
    if not output:
        raise UserError("--without needs -o output=NEW, the new run's directory")
    run = RunDirectory(Path(words.conf).expanduser().absolute())
    if not run.holds_run:
        raise UserError(
            f"{run.path} holds no run; --without needs the directory of one, on the SuperLink's"
            " host"
        )
    run.check_unlocked()
    anew = Anew.plan(run, client)
    check_unchanged(run.experiment(), options, run.path)
    new = RunDirectory(absolute(str(output)))
    begun = anew.is_begun(new)
    lines = anew.words()
    if begun:
        lines = [f"{new.path} holds this run, and goes on after round {new.last_round()}"]
    if words.dry_run:
        lines.append(f"it would run in {output}; nothing was started")
    for line in lines:
        out.print(line, soft_wrap=True)
    if words.dry_run:
        return 0
    if not words.superlink:
        raise UserError("--without needs --superlink: sites with data of their own are real nodes")
    find_connection(words.superlink)
    if not begun:
        anew.begin(new)
    wanted, _ = resumed(new, {}, {**options, "resume": True, "output": str(new.path)}, "")
    return submit(wanted, words.superlink, out, err, sys.argv[1:], quiet=words.quiet)


def configured(
    path: Path | None,
    of_conf: Mapping[str, object],
    options: Mapping[str, object],
    conf_name: str,
    out: Console,
) -> RunConfig:
    """The keys of a run here, a resumed one's taken from its directory; what is to be said of them
    is printed. Raises UserError.

    path, of_conf: the file CONF, if it is one, and its keys. options: those that win."""
    named = {**of_conf, **options}
    if named.get("resume") is True:
        output = resumed_output(named, path)
        wanted, unused = resumed(RunDirectory(output), of_conf, options, conf_name)
        if unused:
            out.print(unused, soft_wrap=True)
    else:
        wanted = config.run_config(named)
        output = of_run(wanted, path)
    # a file may hold other methods' options, too
    of_file = [
        name
        for name, (key, value) in wanted.keys().items()
        if name in of_conf and name not in options and value != key.default
    ]
    _name_unused(config.unused([*options, *of_file], wanted), out)
    return config.located(wanted, output)


def _name_unused(lines: Iterable[str], out: Console) -> None:
    for line in lines:
        out.print(f"warning: {line}", soft_wrap=True)
