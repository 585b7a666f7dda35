"""`pfedlora run`, from its arguments to its exit code: the keys that they mean, and where it
runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console

from pfedlora_flwr import config
from pfedlora_flwr.commands.console import plain
from pfedlora_flwr.commands.dry_run import dry_run as show_plan
from pfedlora_flwr.commands.run import run
from pfedlora_flwr.commands.submit import submit
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features import plans
from pfedlora_flwr.files import absolute
from pfedlora_flwr.launch.checks import Say
from pfedlora_flwr.launch.superlink import find_connection
from pfedlora_flwr.ops.run import configured
from pfedlora_flwr.runs.begin import check_unchanged, resumed
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.site_names import client_of

SITES = {"classes", "input-shape", "data.class-names"}
"""Keys that say what data of the sites' own is like."""


def start(
    conf: str | None,
    options: Iterable[str],
    out: Console,
    err: Console,
    *,
    port: int = 0,
    quiet: bool = False,
    dry_run: bool = False,
    engine: str = "flower",
    superlink: str | None = None,
    without: str | None = None,
) -> int:
    """Carries the run out, here or on nodes; the exit code. Raises UserError before anything has
    started."""
    say = plain(out)
    options = config.parse_overrides(options)
    if without is not None:
        wanted = _without(conf, options, without, superlink, say, dry_run=dry_run)
        if wanted is None:
            return 0
        return submit(wanted, superlink or "", out, err, sys.argv[1:], quiet=quiet)
    path = config.find_conf(conf) if conf is not None else None
    of_conf = config.read_run(path) if path else {}
    named = of_conf | options
    if options.get("accept-changed-code") is True and named.get("resume") is not True:
        raise UserError("accept-changed-code=true needs resume=true")
    if superlink is not None:
        _check_superlink(superlink, named, engine, port, dry_run=dry_run)
        wanted = config.run_config(named)
        # `data.` keys are of the nodes' data
        of_here = [name for name in options if not name.startswith("data.")]
        for line in config.unused(of_here, wanted):
            say(f"warning: {line}")
        for line in plans.of_nodes(wanted):
            say(line)
        return submit(wanted, superlink, out, err, sys.argv[1:], quiet=quiet)
    try:
        wanted = configured(path, of_conf, options, str(conf), say)
        if not dry_run:
            return run(wanted, out, err, port=port, quiet=quiet, engine=engine)
        show_plan(wanted, out, engine=engine)
    except UserError as error:
        if "dataset" in named or "resume" in named or SITES.isdisjoint(of_conf):
            raise
        raise UserError(
            f"{error}; without a superlink this run is a simulation, of dataset"
            f" {Experiment().dataset!r}"
        ) from None
    return 0


def _check_superlink(
    superlink: str, named: Mapping[str, object], engine: str, port: int, *, dry_run: bool
) -> None:
    if superlink == "":
        raise UserError("superlink is ''; allowed: a connection in $FLWR_HOME/config.toml")
    nodes = f"superlink={superlink}"
    refused = {
        f"engine={engine} trains here, {nodes} on nodes: give only one": engine != "flower",
        f"ray is for simulations, {nodes} for real nodes: give only one": named.get("ray"),
        f"port={port} is for simulations: Flower's config.toml has the address": port,
        "dry-run=true is for simulations: only the nodes know what they have": dry_run,
    }
    for why, wrong in refused.items():
        if wrong:
            raise UserError(why)


def _without(
    conf: str | None,
    options: dict[str, object],
    client: str,
    superlink: str | None,
    say: Say,
    *,
    dry_run: bool,
) -> RunConfig | None:
    """A run of sites with data of their own, begun anew without one of them; None after a dry
    run."""
    told = f"without={client} needs"
    if options.pop("resume", False) is not True or conf is None:
        raise UserError(f"{told} resume=true and the run's directory in the place of CONF")
    output = options.pop("output", "")
    if not output:
        raise UserError(f"{told} output=NEW, the new run's directory")
    old = RunDirectory(Path(conf).expanduser().absolute())
    if not old.holds_run:
        raise UserError(
            f"{old.path} holds no run; {told} the directory of one, on the SuperLink's host"
        )
    old.check_unlocked()
    new = RunDirectory(absolute(str(output)))
    way = plans.without(old, client_of(old, client), new)
    way.check()
    check_unchanged(old.experiment(), options, old.path)
    for line in way.words():
        say(line)
    if dry_run:
        say(f"it would run in {output}; nothing was started")
        return None
    if not superlink:
        raise UserError(f"{told} superlink=…: sites with data of their own are real nodes")
    find_connection(superlink)
    if not way.is_begun:
        way.claim()
    wanted, _ = resumed(new, {}, {**options, "resume": True, "output": str(new.path)}, "")
    return wanted
