"""The `pfedlora` command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pfedlora_flwr.config import Experiment, all_keys
from pfedlora_flwr.keys import UserError

cli = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
out, err = Console(), Console(stderr=True, soft_wrap=True)


def _keys_help() -> str:
    lines = [f"{k.name} = {k.text(k.default)}\n    {k.meaning} [{k.allowed}]\n" for k in all_keys().values()]
    return "\b\nKeys for CONF.yaml and -o (name = default, meaning, allowed values):\n\n\b\n" + "\n\b\n".join(lines)


Options = Annotated[list[str] | None, typer.Option("-o", "--option", metavar="KEY=VALUE", help="Set a key; may be given many times.")]


@cli.command(epilog=_keys_help())
def run(
    conf: Annotated[Path | None, typer.Argument(metavar="[CONF.yaml]", help="The keys of the run; without it: defaults and -o.")] = None,
    option: Options = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in its output directory, bit for bit.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in its output directory.")] = False,
    port: Annotated[int, typer.Option(help="TCP port of the private SuperLink; 0: a free one.", min=0, max=65535)] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress display.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard event files to `events` in the output.")] = False,
    superlink: Annotated[
        str, typer.Option(metavar="CONNECTION", help="Train on the nodes of this SuperLink, a connection in $FLWR_HOME/config.toml.")
    ] = "",
) -> None:
    """Train: a simulation through `flwr run` on a SuperLink of its own, or real nodes with --superlink."""
    from pfedlora_flwr import running, submitting

    flags = [text for flag, text in ((resume, "resume=true"), (overwrite, "overwrite=true")) if flag]
    experiment = Experiment.load(conf, [*(option or []), *flags])
    if superlink:  # `output` is a path on the SuperLink's host
        raise typer.Exit(submitting.submit(experiment, superlink, out, err, quiet=quiet))
    if not experiment.output:
        experiment = experiment.replace(output=f"runs/{conf.stem if conf else experiment.default_name}")
    experiment = experiment.replace(output=str(Path(experiment.output).expanduser().absolute()))
    raise typer.Exit(running.run(experiment, out, err, port=port, quiet=quiet, tensorboard=tensorboard))


@cli.command()
def doctor() -> None:
    """Check this machine: versions, cores, GPU, dataset caches, disk, ports; says what to fix."""
    from pfedlora_flwr.doctor import report

    raise typer.Exit(report(out))


def main() -> None:
    """The entry point: a user's mistake is one line on stderr and exit code 2."""
    sys.path.append(os.getcwd())  # a user's `package.module:Class` may lie in the current folder
    try:
        cli()
    except UserError as error:
        err.print(f"error: {error}", markup=False, highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
