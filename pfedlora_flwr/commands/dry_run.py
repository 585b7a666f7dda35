"""`pfedlora run --dry-run`: makes a run's checks and estimates its cost. Nothing is started or
written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pfedlora_flwr.commands.console import plain
from pfedlora_flwr.comparison import estimate
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.errors import some
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.features import plans
from pfedlora_flwr.files import check_writable
from pfedlora_flwr.launch.checks import Start, check
from pfedlora_flwr.launch.resources import Resources, resources
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.models import registry as models
from pfedlora_flwr.ops.progress_text import duration, megabytes

_ACTOR = 0.4e9
"""Bytes of memory that a process with PyTorch and a client takes."""
_LISTED = 20
"""Clients and classes that a table lists, and features that a line does."""


def dry_run(config: RunConfig, out: Console, *, engine: str = "flower") -> None:
    """Says what a run would take. Raises UserError for whatever the run would be refused
    for."""
    output = config.execution.output
    check(Start(config, engine), plain(out))
    check_writable(Path(output))
    setup = Setup.of(config)
    dataset = setup.dataset
    out.print(_models(setup.method))
    out.print(_partition(setup))
    out.print(f"inputs: {dataset.kind.of(dataset.shape)}")
    if dataset.feature_names:
        out.print(f"features: {some(dataset.feature_names, _LISTED)}", soft_wrap=True)
    if dataset.resized:
        height, width = dataset.shape[1:]
        out.print(
            f"{dataset.resized} of {len(dataset.labels)} images are resized to {height} × {width},"
            " bilinear"
        )
    for line in _costs(config, resources(config) if engine == "flower" else Resources(1)):
        out.print(line, soft_wrap=True)
    out.print(f"it would run in {output}; nothing was started", soft_wrap=True)


def _models(method: Method) -> Table:
    """A line a client model, with all that a client of it keeps, and where a neck brings its
    representation to."""
    e = method.experiment
    table = Table(title=Text(f"{e.method}: what a client keeps"))
    for name in ("model", "clients", "representation", "parameters", "of them the model's"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for k, model in enumerate(method.model_names[: e.clients]):
        kept = method.private_init(k, 0)
        own = method.predictor(kept)
        width, necked = (
            models.facts(model, method.task, built).width for built in (None, method.built_width)
        )
        representation = str(width) if width == necked else f"{width} → {necked}"
        counts = [sum(p.numel() for p in module.parameters()) for module in (kept, own)]
        clients = len(range(k, e.clients, len(method.model_names)))
        told = representation, *(f"{count:,}" for count in counts)
        table.add_row(Text(str(model)), str(clients), *told)
    return table


def _partition(setup: Setup) -> Table:
    """Samples by client and class, at most 20 clients; above 20 classes only how many of them a
    client holds."""
    e, dataset, partition = setup.experiment, setup.dataset, setup.partition
    wide = dataset.classes <= _LISTED
    # as markup, :100: is an emoji
    title = f"{e.dataset}: samples (training, validation and test) by client and class"
    table = Table(title=Text(title))
    for name in ("client", *(dataset.class_names if wide else ("classes",)), "all"):
        table.add_column(Text(name), justify="right")
    labels = np.asarray(dataset.labels)
    for k, split in enumerate(partition.clients[:_LISTED]):
        counts = np.bincount(labels[np.concatenate(split.parts)], minlength=dataset.classes)
        shown = [str(count or "·") for count in counts] if wide else [str(np.count_nonzero(counts))]
        owner = f" ({partition.owners[k]})" if partition.owners else ""
        table.add_row(Text(f"{k}{owner}"), *shown, str(counts.sum()))
    if e.clients > _LISTED:
        table.add_row("…", f"{e.clients - _LISTED} more")
    return table


def _costs(config: RunConfig, held: Resources) -> list[str]:
    e = config.experiment
    up, down = estimate.traffic(config)
    seconds = estimate.Speed(held.at_once).seconds(config)
    free = "" if held.nodes else f", of {psutil.virtual_memory().available / 1e9:.1f} GB free here"
    states = f" and the server's {e.clients} states" if estimate.state_bytes(config) else ""
    uploads = " and all uploads" if estimate.upload_bytes(config) else ""
    sent = f"{megabytes(e.sampled * up)} up and {megabytes(e.sampled * down)} down"
    disk = megabytes(estimate.disk([config]))
    return [
        *plans.beside(e),
        f"a round: {e.sampled} of {e.trained_clients} clients, at most {sent}",
        f"trained by: {held.words()}",
        f"time: about {duration(seconds)} for {e.rounds} rounds (a guess: no run has been timed)",
        f"memory: about {(held.actors + 1) * _ACTOR / 1e9:.1f} GB for {held.actors} actors{free}",
        f"disk: at most {disk} for the clients' models{states}{uploads}",
    ]
