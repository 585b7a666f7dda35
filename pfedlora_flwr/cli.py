"""The `pfedlora` command. What a command needs is imported in it: PyTorch takes seconds, and help
does not need it."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path

import click
import typer

from pfedlora_flwr.commands.console import (
    Group,
    PlainCommand,
    WithKeys,
    argument,
    err,
    flag,
    forgiving,
    key_names,
    option,
    out,
    say,
)
from pfedlora_flwr.commands.site import site
from pfedlora_flwr.errors import UserError, brief, final_line, with_traceback
from pfedlora_flwr.version import __version__

cli = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    suggest_commands=False,  # Click's own suggestion is enough
    pretty_exceptions_enable=False,
)


cli.add_typer(site, name="site")


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"pfedlora-flwr {__version__}")
        raise typer.Exit


RUN = argument("RUN")
OPTIONS = option(
    None,
    "KEY=VALUE",
    "Set a key; of the same key the last counts.",
    "-o",
    "--option",
    autocompletion=key_names,
)
CLIENT = option(None, "K", "This client's model.", "--client", min=0)
ALL_CLIENTS = flag("--all-clients", "Use every client's model, one after the other.")
JSON = flag("--json", "Write JSON; for several a list.")
OVERWRITE = flag("--overwrite", "Replace what was written before.")
RAY = option(
    "", "ADDRESS", "Train on this Ray cluster, HOST:PORT; this host must be one of its nodes."
)


@cli.callback()
def pfedlora(
    version: bool = typer.Option(
        False,
        "--version",
        help="Show the version and exit.",
        callback=_print_version,
        is_eager=True,
    ),
) -> None:
    """pFedLoRA and the methods it is compared with, as a Flower application."""


@cli.command(cls=WithKeys)
def run(
    conf: str | None = argument("[CONF]", None),
    option: list[str] | None = OPTIONS,
    resume: bool = flag("--resume", "Continue the run in its output directory, bit for bit."),
    overwrite: bool = flag("--overwrite", "Replace the run in its output directory."),
    accept_changed_code: bool = flag(
        "--accept-changed-code",
        "With --resume: continue although your own code has changed since the last round.",
    ),
    without: str | None = option(
        None,
        "K",
        "With --resume and a run's directory as CONF: train a new run without client K, a number or"
        " its site's name, into a new output, from the last kept round before K took part.",
    ),
    port: int = option(
        0, None, "TCP port of the private SuperLink; 0: a free one.", show_default=False
    ),
    quiet: bool = flag("--quiet", "No progress display."),
    dry_run: bool = flag(
        "--dry-run", "Check everything and estimate time, memory and disk. Nothing is started."
    ),
    engine: str = option(
        "flower", "ENGINE", "flower: `flwr run` with one actor per core. local: in this process."
    ),
    ray: str = RAY,
    superlink: str | None = option(
        None,
        "CONNECTION",
        "Train on the nodes of this SuperLink: a connection in $FLWR_HOME/config.toml.",
    ),
) -> None:
    """Train. By default a simulation through `flwr run` on a private SuperLink; with --superlink on
    real nodes.

    CONF is a YAML file with the keys of the run, or the name of a configuration in the package,
    such as quickstart. Without it all keys have their defaults. -o overrides CONF."""
    with out.status("starting: PyTorch") if out.is_terminal and not quiet else nullcontext():
        from pfedlora_flwr.commands.start_run import start

    flags = (
        (resume, "resume=true"),
        (overwrite, "overwrite=true"),
        (accept_changed_code, "accept-changed-code=true"),
        (ray, f"ray={ray}"),
    )
    code = start(
        conf,
        [*(option or []), *(text for flag, text in flags if flag)],
        out,
        err,
        port=port,
        quiet=quiet,
        dry_run=dry_run,
        engine=engine,
        superlink=superlink,
        without=without,
    )
    raise typer.Exit(code)


@cli.command(cls=PlainCommand)
def compare(
    conf: str = argument("CONF"),
    methods: str | None = option(None, "A,B", "Only these methods."),
    seeds: str | None = option(None, "0,1", "Only these seeds."),
    only: list[str] | None = option(
        None, "KEY=VALUE[,VALUE]", "Only these values of a key on an axis."
    ),
    dry_run: bool = flag(
        "--dry-run", "Show the runs that are left, with time and disk. Change nothing."
    ),
    drop_models: bool = flag(
        "--drop-models", "Remove a run's models when it is done. Its results stay."
    ),
    redo: list[str] | None = option(
        None,
        "stale|RUN",
        "Repeat existing runs: stale (those by older code of yours), or a run's folder.",
    ),
    option: list[str] | None = OPTIONS,
    engine: str = option(
        "auto",
        "ENGINE",
        "local: runs in warm processes of this machine. flower: `flwr run` with one actor per core."
        " auto: flower if there is a GPU or a Ray cluster, otherwise local.",
    ),
    ray: str = RAY,
    jobs: str = option(
        "auto",
        "J",
        "Runs at once; each gets its share of cores and GPUs. auto: one per core with local, one"
        " with flower.",
        "--jobs",
    ),
    shard: str = option("", "I/N", "Only every N-th run, for N hosts with a shared directory."),
    output: Path | None = option(
        None, "DIR", "The comparison's directory; default: runs/FOLDER-CONF."
    ),
    superlink: str = option("", "NAME", "Do the runs on the nodes of this SuperLink."),
) -> None:
    """Do the missing runs of a comparison, and report. A comparison is methods × scenarios × seeds;
    unfinished runs are resumed.

    CONF is a YAML file with base, methods, seeds and axes (docs/comparison.md), or the name of a
    configuration in the package, such as quick/table2."""
    from pfedlora_flwr.commands.comparison import compare as run_missing
    from pfedlora_flwr.comparison.spec import Comparison
    from pfedlora_flwr.config import find_conf, parse_overrides
    from pfedlora_flwr.runs.output import of_comparison

    path = find_conf(conf)
    code = run_missing(
        Comparison.load(path, [*(option or []), *([f"ray={ray}"] if ray else [])]),
        output or of_comparison(path),
        out,
        err,
        methods=_words("--methods", methods),
        seeds=_integers("--seeds", seeds),
        only=only or (),
        dry_run=dry_run,
        engine=engine,
        drop_models=drop_models,
        jobs=jobs,
        shard=shard,
        redo=redo or (),
        options=parse_overrides(option or []),
        superlink=superlink,
    )
    raise typer.Exit(code)


@cli.command(cls=PlainCommand)
def decide(
    table: Path | None = argument("TABLE", None),
    sites: str = option("", "COLUMN", "Whose row it is: the site."),
    label: str = option("", "COLUMN", "What is to be predicted."),
    superlink: str = option("", "NAME", "The tables are at this SuperLink's nodes."),
    rows: int = option(0, "N", "With --superlink: about the rows of a site."),
    minutes: float | None = option(
        None, "N", "What all runs may take, by estimate; default: 10, or 60."
    ),
    seeds: str | None = option(None, "0,1", "These seeds; default: five, if they fit."),
    output: Path | None = option(None, "DIR", "The runs; default: runs/decide-TABLE."),
    yaml: bool = flag("--yaml", "Write the comparison's file, and run nothing."),
    dry_run: bool = flag("--dry-run", "Show the plan. Nothing is written or run."),
    option: list[str] | None = OPTIONS,
) -> None:
    """Should these sites federate? Plan a comparison from one table, or for the nodes that have
    them, run it, and report.

    TABLE is a CSV or Parquet file with a column that names each row's site. The comparison is an
    ordinary one, decide-TABLE.yaml in this folder, or DIR.yaml: references, methods that suit the
    table, each with and without sharing (docs/decide.md)."""
    with out.status("reading the table"):
        from pfedlora_flwr.commands.comparison import compare as run_missing
        from pfedlora_flwr.config import parse_overrides
        from pfedlora_flwr.ops.decide import decide as planned

        found = planned(
            table,
            sites=sites,
            label=label,
            superlink=superlink,
            rows=rows,
            minutes=minutes,
            seeds=_integers("--seeds", seeds),
            output=output,
            dry_run=dry_run,
            options=parse_overrides(option or []),
        )
    for line in found.said:
        out.print(line, soft_wrap=True)
    if not yaml:
        code = run_missing(
            found.whole,
            found.output,
            out,
            err,
            engine="auto" if superlink else "local",
            superlink=superlink,
            dry_run=dry_run,
        )
        raise typer.Exit(code)


@cli.command(cls=PlainCommand)
def report(
    paths: list[Path] = argument("RUN_OR_DIR…"),
    output: Path | None = option(None, "DIR", "Default: `report` in the first path given."),
    target: float | None = option(
        None, "X", "Count costs up to this accuracy instead of `target-accuracy`."
    ),
    score: str | None = option(None, "NAME", "Judge by it instead of `verdict.score`."),
    margin: float | None = option(None, "POINTS", "Judge by it instead of `verdict.margin`."),
    std: bool = flag("--std", "Accuracies as mean ± standard deviation, beside the interval."),
    best: bool = flag("--best", "Mark each column's best and second-best accuracy."),
) -> None:
    """Report on runs. Writes tables (Markdown, CSV, LaTeX), figures (PNG, SVG, PDF) and one HTML
    page.

    Each RUN_OR_DIR is a comparison, a run, or a folder of runs. Of a run and its control it says
    the difference."""
    from pfedlora_flwr.commands.results import show_report
    from pfedlora_flwr.ops.report import report as written

    with out.status("drawing figures"):
        found = written(
            paths, output, target=target, score=score, margin=margin, std=std, best=best
        )
    show_report(found.written, out)
    for line in found.warnings:
        err.print(line)


@cli.command(cls=PlainCommand)
def predict(
    place: Path = RUN,
    paths: list[Path] = argument("PATH…"),
    client: int | None = CLIENT,
    all_clients: bool = ALL_CLIENTS,
    top: int = option(3, "N", "Show the N most probable classes.", min=1),
    as_json: bool = JSON,
    as_csv: bool = flag("--csv", "Write CSV: one row per client and input."),
    calibrated: bool = flag(
        "--calibrated", "Divide outputs by a temperature, by the client's own validation part."
    ),
    output: Path | None = option(None, "FILE", "Write to this file; default: to the terminal."),
    option: list[str] | None = OPTIONS,
    overwrite: bool = OVERWRITE,
) -> None:
    """Predict with a client's model. Shows class names and probabilities, the most probable
    first.

    RUN is a run's directory; on a deployed node its state-path, or a run's folder there. Each PATH
    holds inputs for the model: an image file of any size; a CSV or Parquet table with the columns
    it was trained on, or JSON, an object a line (.jsonl, or - for the standard input); series or
    vectors [n, …] in an .npy or .npz file, in the training data's units; or a folder of such files.
    -o data.sep=… and -o data.decimal=… say how tables are written, if not as the run's. Rows count
    from 1. A PATH that cannot be read is named, and the exit code is 1, or 2 if none can be."""
    from pfedlora_flwr.commands import results
    from pfedlora_flwr.config import parse_overrides
    from pfedlora_flwr.files import check_replaceable, make_folder, write_atomically
    from pfedlora_flwr.ops.calibrate import temperature
    from pfedlora_flwr.ops.load_models import models_of
    from pfedlora_flwr.ops.predict import predict_files

    if as_json and as_csv:
        raise UserError("--json and --csv are both given; choose one")
    models = models_of(place, client, err.print, all_clients=all_clients)
    options = parse_overrides(option or [])
    if output is not None:
        check_replaceable(output, overwrite=overwrite)
        make_folder(output.absolute().parent)
    by = partial(temperature, say=err.print) if calibrated else None
    asked, found = predict_files(models, paths, options=options, divisor=by)
    for line in asked.broken:
        err.print(f"error: {line}")
    if not found:
        raise typer.Exit(2)
    for line in asked.notes:
        err.print(f"note: {line}")
    if as_json:
        text = results.predictions_json(found, top)
    elif as_csv:
        text = results.predictions_csv(found, top)
    else:
        text = results.predictions_lines(found, top, named=all_clients)
    if output is None:
        print(text, end="")
    else:
        write_atomically(output, text.encode())
    raise typer.Exit(1 if asked.broken else 0)


@cli.command(cls=PlainCommand)
def evaluate(
    place: Path = RUN,
    data: str | None = argument("[DATA]", None),
    client: int | None = CLIENT,
    all_clients: bool = ALL_CLIENTS,
    as_json: bool = JSON,
    rows: bool = flag("--rows", "List the rows of the client's test part, from 1."),
    option: list[str] | None = OPTIONS,
) -> None:
    """Evaluate a client's model on labelled samples. Shows accuracy, balanced accuracy, macro-F1
    and the recall of each class.

    RUN is a run's directory; on a deployed node its state-path, or a run's folder there. DATA is a
    dataset, as in the key `dataset`: folder:DIR, npz:FILE, csv:FILE, or one from the package.
    Default: the client's own test part, as in the run. -o data.…=… says how DATA is to be read,
    where it is written otherwise than the run's data, -o data-path=… where its files are."""
    from pfedlora_flwr.commands.results import evaluation_notes, show_evaluations
    from pfedlora_flwr.config import parse_overrides
    from pfedlora_flwr.ops.evaluate import evaluate as evaluated
    from pfedlora_flwr.ops.load_models import models_of

    models = models_of(place, client, err.print, all_clients=all_clients)
    found = evaluated(models, data, parse_overrides(option or []), rows=rows)
    for line in evaluation_notes(found):
        err.print(line)
    if as_json:
        print(json.dumps(found if all_clients else found[0], indent=1))
    else:
        show_evaluations(found, out)


@cli.command(cls=PlainCommand)
def adapt(
    place: Path = argument("RUN_OR_FILE"),
    output: Path = option(..., "DIR", "The folder for the model and adapted.json."),
    client: int | None = option(
        None,
        "K",
        "A held-out client; with -o dataset its number, which decides its model and its draws.",
        min=0,
    ),
    samples: int | None = option(
        None, "N", "Use at most N training samples, from its classes in turn.", min=2
    ),
    option: list[str] | None = OPTIONS,
    overwrite: bool = OVERWRITE,
    as_json: bool = JSON,
) -> None:
    """Train a personal model for a client that was not in the run, from the final shared state and
    the client's own data. Shows its accuracy, and that of the same client alone.

    RUN_OR_FILE is a run's directory, or a file of `pfedlora export RUN --shared`. With -o dataset=…
    the client has data of its own, and with -o models=… a model of its own. -o rounds=… is the
    number of its visits."""
    from pfedlora_flwr.commands.results import adapted_lines
    from pfedlora_flwr.config import parse_overrides
    from pfedlora_flwr.ops.adapt import adapt as adapted
    from pfedlora_flwr.ops.load_models import note_code

    options = parse_overrides(option or [])
    note_code(place, err.print)
    row = adapted(
        place, output, client=client, samples=samples, overwrite=overwrite, options=options
    )
    if as_json:
        print(json.dumps(row, indent=1))
        return
    for line in adapted_lines(row, output):
        out.print(line, soft_wrap=True)


@cli.command(cls=PlainCommand)
def export(
    place: Path = RUN,
    client: int | None = CLIENT,
    format: str = option(
        "",
        "FORMAT",
        "safetensors, torch-export or onnx; peft, a folder of only LoRA and the head.",
        "--format",
    ),
    shared: bool = flag("--shared", "Export the shared state instead, for `pfedlora adapt`."),
    output: Path | None = option(
        None,
        "FILE",
        "Default: client-K with the format's suffix; with --shared shared.safetensors.",
    ),
    overwrite: bool = OVERWRITE,
) -> None:
    """Write a client's model as one file. It is checked against the model itself, and a model card
    is written beside it. LoRA is merged into the weights.

    With --shared write what a client receives that was not in the run: keys, class names,
    normalisation and shared tensors, and no client's upload or model.

    RUN is a run's directory; on a deployed node its state-path, or a run's folder there.
    """
    from pfedlora_flwr.files import absolute
    from pfedlora_flwr.ops import export as exporting
    from pfedlora_flwr.ops.load_models import models_of

    if shared:
        if client is not None or format:
            raise UserError("--shared has neither --client nor --format: it is no client's model")
        written = exporting.export_shared(place, output, overwrite=overwrite)
        out.print(f"{written}: the shared state, for `pfedlora adapt`", soft_wrap=True)
        return
    if client is None or not format:
        missing = "--client K" if client is None else "--format FORMAT"
        raise UserError(
            f"{missing} is missing: a client's model needs --client and --format, the shared state"
            " --shared"
        )

    [trained] = models_of(place, client, err.print)
    target = absolute(output or f"client-{client}{exporting.SUFFIXES.get(format, '')}")
    difference = exporting.export(trained, format, target, overwrite=overwrite)
    out.print(
        f"{target} and its model card; logits within {difference:.1g} of the model's own",
        soft_wrap=True,
    )


@cli.command(cls=PlainCommand)
def audit(paths: list[Path] = argument("RUN_OR_DIR…"), as_json: bool = JSON) -> None:
    """Measure what uploads reveal about single clients. Attacks infer a client's classes and
    training samples; the result is written to audit.json.

    Each RUN_OR_DIR is a run, or a folder of runs, or a comparison. Runs with audit.uploads=true are
    audited by their uploads, others only by the sum of the last round (docs/audit.md)."""
    from pfedlora_flwr.commands.audit import audit_all

    raise typer.Exit(audit_all(paths, out, err, as_json=as_json))


@cli.command(cls=PlainCommand)
def align(
    conf: str | None = argument("[CONF]", None),
    option: list[str] | None = OPTIONS,
    samples: int = option(1000, "N", "Use at most N samples of the dataset.", min=2),
    basis: Path | None = option(
        None, "FILE", "Write the principal directions of these inputs, public ones."
    ),
    anchors: str | None = option(
        None, "DATA", "Write anchors first: public inputs of this dataset, whose labels are unused."
    ),
    reference: str | None = option(None, "MODEL", "The model onto which anchors map others."),
    output: Path | None = option(None, "FILE", "Where anchors are written."),
    licence: str = option("", "TEXT", "The licence of the anchors' inputs."),
    overwrite: bool = OVERWRITE,
    as_json: bool = JSON,
) -> None:
    """Compare models' representations. Shows how well one model's class means classify through
    another.

    The models are the initial models of the run that CONF and -o describe, without randomly
    initialised necks. Averaging makes no sense if representations have different meanings.

    --basis is for -o adapter.basis=FILE of pfedlora_plus, --anchors for -o
    representation=anchors:FILE. If the inputs are private, it reveals
    something about them to whoever has it."""
    from pfedlora_flwr import config
    from pfedlora_flwr.commands.results import show_alignment
    from pfedlora_flwr.ops.align import align as aligned

    of_conf = config.read_run(config.find_conf(conf)) if conf is not None else {}
    keys = config.run_config(of_conf | config.parse_overrides(option or []))
    found = aligned(
        keys,
        samples=samples,
        basis=basis,
        anchors=anchors,
        reference=reference,
        output=output,
        licence=licence,
        overwrite=overwrite,
    )
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        show_alignment(found, out)


@cli.command(cls=PlainCommand)
def weights(
    name: str = argument("MODEL"),
    source: Path | None = option(
        None,
        "FILE",
        "Read the weights from this file; other names are allowed, in the same order.",
        "--from",
    ),
    output: Path | None = option(None, "FILE", "Default: the model's name with .safetensors."),
    overwrite: bool = OVERWRITE,
) -> None:
    """Write a file of pretrained weights. MODEL is timm:NAME or torchvision:NAME.

    The weights come from an installed package that holds them, otherwise from the library, which
    downloads them. The command prints the licence, the hash and the key to use the file."""
    from pfedlora_flwr.commands.weights import write

    for line in write(name, source, output, overwrite=overwrite):
        out.print(line, soft_wrap=True)


@cli.command("list", cls=PlainCommand)
def list_(folder: Path = argument("DIR"), as_json: bool = JSON) -> None:
    """List the runs in DIR and below. Shows state, rounds, the keys in which they differ, and
    accuracy at best validation."""
    from pfedlora_flwr.commands.listing import show

    show(folder, out, as_json=as_json)


@cli.command(cls=PlainCommand)
def status(
    place: str | None = argument("[RUN]", None),
    superlink: str | None = option(
        None,
        "CONNECTION",
        "Ask this SuperLink, a connection in $FLWR_HOME/config.toml. RUN is then Flower's"
        " number of a run; default: the last one.",
    ),
    as_json: bool = JSON,
) -> None:
    """Show how a run stands: rounds, time left, clients with their failures and refused updates,
    and disk.

    RUN is a run's directory. The exit code is 0 for a completed run, 1 for one that failed or
    diverged, 3 for a running one, 4 for one that was killed, 5 for one that was stopped, and 6 if
    the run's server is on another host and cannot be asked. It is 2 if there is no such run."""
    from pfedlora_flwr.commands.status import show_status

    raise typer.Exit(show_status(place, superlink, out, as_json=as_json))


@cli.command(cls=PlainCommand)
def doctor(
    superlink: str = option(
        "",
        None,
        "Check this connection of $FLWR_HOME/config.toml instead. Shows whether the"
        " SuperLink answers, whether its certificate fits, and its nodes.",
    ),
) -> None:
    """Check this machine. Shows packages, cores, GPU, dataset caches, disk and ports, and what to
    fix."""
    from pfedlora_flwr.commands.doctor import examine

    raise typer.Exit(examine(out, superlink))


@cli.command(cls=PlainCommand)
def methods(as_json: bool = JSON) -> None:
    """List the methods. Shows the idea of each, and what clients share (docs/methods.md)."""
    from pfedlora_flwr.commands.known import show_methods

    show_methods(out, as_json=as_json)


@cli.command(cls=PlainCommand)
def keys(word: str = argument("[WORD]", ""), as_json: bool = JSON) -> None:
    """Explain keys. Shows default, meaning and allowed values of those with WORD in their name or
    meaning; without it of all."""
    from pfedlora_flwr.commands.known import show_keys

    show_keys(word, out, as_json=as_json)


def _words(option: str, text: str | None, what: str = "names") -> list[str]:
    """None: the option is not given, and the list is empty."""
    found = [word.strip() for word in (text or "").split(",") if word.strip()]
    if text is not None and not found:
        raise UserError(f"{option} is {text!r}; allowed: {what} separated by commas")
    return found


def _integers(option: str, text: str | None) -> list[int]:
    try:
        return [int(word) for word in _words(option, text, "integers")]
    except ValueError:
        raise UserError(f"{option} is {text!r}; allowed: integers separated by commas") from None


@cache
def commands() -> click.Command:
    """All of them as Click knows them, read from the functions' types once a process."""
    return typer.main.get_command(cli)


def main() -> None:
    """The entry point: a user's mistake is one line on stderr and exit code 2."""
    code = 2
    forgiving()
    try:
        sys.path.append(_here())  # a user's `package.module:Class` may lie there
        code = commands()(_given(), prog_name="pfedlora", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as asked:
        asked.show()
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "pfedlora"
        told = error.format_message().rstrip(".")
        say(f"error: {told}{'' if told.endswith('?') else ';'} see {command} --help")
    except UserError as error:
        say(f"error: {final_line(error)}")
    except OSError as error:  # such as a full disk under stdout
        say(f"error: {with_traceback(brief(error), error)}")
    sys.exit(code)


def _given() -> list[str]:
    """The command line. A shell leaves the `~` of `--output=~/x`: here it is written out."""
    parts = ((word, *word.partition("=")) for word in sys.argv[1:])
    return [
        f"{name}={os.path.expanduser(value)}" if name.startswith("--") and equals else word
        for word, name, equals, value in parts
    ]


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UserError("the current folder has been removed; change to an existing one") from None


if __name__ == "__main__":
    main()
