"""From a table with a column of sites to an ordinary comparison: its methods by the rows of a site
and by the models, its rounds and seeds by the minutes there are (docs/decide.md)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

from pfedlora_flwr import config
from pfedlora_flwr.comparison import estimate
from pfedlora_flwr.comparison.spec import Comparison
from pfedlora_flwr.data import datasets, registry, tables
from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.setup import check_classes
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.errors import UserError, counted, meant, some
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.files import check_writable, make_folder, write_atomically
from pfedlora_flwr.launch.checks import check_score
from pfedlora_flwr.launch.resources import cores
from pfedlora_flwr.launch.superlink import find_connection, nodes_of
from pfedlora_flwr.methods.registry import POOLED
from pfedlora_flwr.ops.progress_text import duration
from pfedlora_flwr.runs.output import from_here, of_comparison
from pfedlora_flwr.training.kinds import TEXT, Kind, read_shape

MINUTES, NODES_MINUTES = 10.0, 60.0
_FORMS = {".csv": "csv", ".gz": "csv", ".tsv": "csv", ".parquet": "parquet"}
_ENOUGH = 500
"""Rows of a site from which the methods for larger sites are tried."""
_PLANS = ((5, 30), (5, 20), (5, 15), (5, 10), (3, 10), (2, 10), (2, 5))
"""Seeds and rounds, from the best on: the first that fits the time is taken."""
_STEPS, _MOST_EPOCHS = 10, 5
_OWN = {
    "dataset": "the table",
    "data.label-column": "label=…",
    "data.client-column": "sites=…",
    "partition.kind": "nothing: it is natural",
    "clients": "nothing: the sites are counted",
    "method": "`pfedlora compare` with the file that decide writes",
    "seed": "seeds=…",
    "output": "decide's own output",
    "sharing": "nothing: each method runs with and without",
}
"""Keys that `decide` sets itself, and what to use in their place."""


@dataclass(frozen=True)
class Decision:
    """The comparison that can decide. file: where it stands as YAML. output: the directory of its
    runs. said: what is to be told of it, a line each."""

    whole: Comparison
    file: Path
    output: Path
    said: tuple[str, ...]


def suited(rows: Sequence[int], models: Sequence[str], train: str) -> tuple[tuple[str, ...], str]:
    """The methods to try, and why these. rows: of each site. models: of the sites, in turn. train:
    what is trained of them: all, head or lora."""
    if train == "head":
        return ("fedssa", "pfedlora_plus", "lg_fedavg", "fedlda"), "frozen models"
    if len({*models}) > 1:
        return ("fedproto", "fd", "pfedlora", "fedmrl"), "different models"
    if train == "lora":
        return ("fedit", "fedsa_lora", "lg_fedavg"), "LoRA in one language model"
    if median(rows) >= _ENOUGH:
        told = f"one architecture, at least {_ENOUGH} rows at most sites"
        return ("fedavg", "fedprox", "fedrep", "ditto"), told
    return ("fedavg", "fedper", "fedproto"), f"one architecture, under {_ENOUGH} rows at most sites"


def decide(
    table: Path | None = None,
    *,
    sites: str = "",
    label: str = "",
    superlink: str = "",
    rows: int = 0,
    minutes: float | None = None,
    seeds: Sequence[int] = (),
    output: Path | None = None,
    dry_run: bool = False,
    options: Mapping[str, object] | None = None,
) -> Decision:
    """Plans the comparison, and writes its file. Raises UserError.

    sites, label: columns of the table. superlink: a connection in Flower's config.toml; then the
    tables are at its nodes, and sites is empty. rows: of such a site, about. minutes: what all runs
    may take, by estimate; None: MINUTES, or NODES_MINUTES at nodes. seeds: those to run; empty: as
    many as fit. output: the directory of its runs; the file then lies beside it. dry_run: whether
    no file is written. options: keys of all runs, which win."""
    given, own = options or {}, _OWN.keys() - ({"clients"} if superlink else set())
    minutes = (NODES_MINUTES if superlink else MINUTES) if minutes is None else minutes
    if not minutes > 0:
        raise UserError(f"minutes is {minutes}; allowed: above 0")
    if taken := next((key for key in given if key in own), None):
        raise UserError(f"{taken} is set by decide itself: use {_OWN[taken]}")
    if bool(superlink) in (bool(table and sites and label), bool(table or sites)):
        raise UserError(
            "decide needs a table with sites=… and label=…, or superlink=… and rows=…, where the"
            " nodes have the tables"
        )
    if superlink:
        base, data, sizes = _at_nodes(superlink, label, rows, given)
    else:
        assert table is not None
        base, data, sizes = _data(table, sites, label, given)
    methods, why = suited(sizes, str(base["models"]).split(","), str(base["train"]))
    name = table.name.partition(".")[0] if table else superlink
    references = ("standalone",) if superlink else ("standalone", POOLED)
    file = Path(f"decide-{name}.yaml")
    place = (output or of_comparison(file)).absolute()
    file = file if output is None else place.with_name(f"{place.name}.yaml")
    content: dict[str, Any] = {}
    tried: list[str] = []
    for number, rounds in _PLANS:
        content = {
            "base": {"rounds": rounds} | base,
            "methods": [*references, *methods],
            "seeds": [*seeds] or [*range(number)],
            "axes": {"sharing": ["mean", "none"]},
        }
        whole = Comparison.of(file.stem, content, {})
        runs, seconds = _cost(whole, nodes=bool(superlink))
        tried.append(f"{counted(len(whole.seeds), 'seed')} of {content['base']['rounds']} rounds")
        if seconds <= 60 * minutes:
            break
    used = tried[-1]
    over = f", more than the {minutes:g} minutes asked for" if seconds > 60 * minutes else ""
    cut = f", reduced from {tried[0]} to save time" if used != tried[0] else ""
    shown = from_here(file.absolute())
    where = [] if output is None else ["--output", str(from_here(place))]
    again = shlex.join(["pfedlora", "compare", str(shown), *where])
    on = f" with superlink={superlink}" if superlink else ""
    least, most = min(sizes), max(sizes)
    held = f"{least}" if least == most else f"{least} to {most}"
    said = (
        f"{data}: {sum(sizes)} rows, {held} a site; about a tenth of a site's"
        f" rows are its test part: {least // 10} rows at the smallest",
        f"methods: {' and '.join(references)} as references; {', '.join(methods)} ({why}), each"
        " with and without sharing",
        *([f"{POOLED} is left out: its rows would have to be in one place"] if superlink else []),
        f"plan: {used}{cut}: {runs} runs, about {duration(seconds)}{over} (an estimate)",
        f"the comparison is in {shown}; this does the same: `{again}`{on}",
    )
    if not dry_run:
        _write(file, content)
    return Decision(whole, file, place, said)


def _data(
    table: Path, sites: str, label: str, given: Mapping[str, object]
) -> tuple[dict[str, object], str, list[int]]:
    """The keys of all runs but rounds, the data in words, and the rows of each site that takes
    part. Raises UserError."""
    form = _FORMS.get(table.suffix.lower())
    if form is None:
        raise UserError(f"{table} is no table; allowed: files that end in {', '.join(_FORMS)}")
    base: dict[str, object] = {
        "dataset": f"{form}:{table}",
        "data.label-column": label,
        "data.client-column": sites,
        "partition.kind": "natural",
    }
    if table.suffix.lower() == ".tsv":
        base["data.sep"] = "tab"
    e = Experiment.of(config.parse({**base, **given}))
    how = Reading.of(e, str(given.get("data-path", "")))
    there = tables.read(table.expanduser(), form, how).column_names
    for key, name in (("sites", sites), ("label", label)):
        if name not in there:
            hint = meant(name, there, f"its columns: {some(there)}")
            raise UserError(f"{key} is {name!r}, and {table} has no such column; {hint}")
    if sites == label:
        raise UserError(f"sites and label are both {label!r}; allowed: two columns")
    dataset = datasets.load(registry.located(e.dataset), how)
    check_classes(e, dataset)
    check_score(str(given.get("verdict.score", "")), dataset.class_names)
    rows, few = _rows(dataset, table, sites, e.partition.min_samples)
    base |= dict(_training(dataset.kind, int(median(rows)), given))
    classes = some(dataset.class_names)
    without = f" ({few} with fewer than {e.partition.min_samples} rows left out)" if few else ""
    told = f"{counted(len(rows), 'site')}{without}, {dataset.classes} classes ({classes})"
    return {**base, "clients": len(rows), **given}, told, rows


def _at_nodes(
    superlink: str, label: str, rows: int, given: Mapping[str, object]
) -> tuple[dict[str, object], str, list[int]]:
    """The same where the nodes have the tables, as far as it is told. Raises UserError."""
    nodes = nodes_of(find_connection(superlink))
    clients = int(str(given.get("clients", sum(node.status == "online" for node in nodes))))
    if clients < 2:
        raise UserError(
            f"superlink {superlink!r} has {counted(clients, 'node')} online; expected at least two"
        )
    classes = given.get("classes") or given.get("data.class-names")
    lacks = {"rows": rows, "input-shape": given.get("input-shape"), "classes": classes}
    if missing := next((key for key, value in lacks.items() if not value), None):
        raise UserError(f"{missing} is not given: the tables are at the nodes, so decide needs it")
    base: dict[str, object] = {"data.label-column": label} if label else {}
    kind, _ = read_shape(str(given["input-shape"]))
    base |= dict(_training(kind, rows, given)) | {"clients": clients}
    told = f"{counted(clients, 'site')} at {superlink}, as told"
    return {**base, **given}, told, [rows] * clients


def _rows(dataset: Dataset, table: Path, sites: str, least: int) -> tuple[list[int], int]:
    """Of each site that has enough to take part, and how many have not. Raises UserError if those
    that have are not two."""
    names, counts = np.unique(np.asarray(dataset.owners), return_counts=True)
    rows = [int(count) for count in counts if count >= least]
    if len(names) < 2:
        raise UserError(
            f"{table}: all rows have {sites}={names[0]}; expected at least two sites: with one"
            " there is nothing to federate"
        )
    if len(rows) < 2:
        raise UserError(
            f"{table}: of {len(names)} sites {len(rows)} have the {least} rows of"
            f" partition.min-samples, the largest {counts.max()}; expected at least two sites"
            f" with so many: is {sites!r} the column of sites?"
        )
    return rows, len(names) - len(rows)


def _training(kind: Kind, rows: int, given: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The keys of training, for so many rows a site."""
    text = kind == TEXT
    models = str(given.get("models", "auto" if text else "mlp1"))
    train = "all" if not text else "head" if "," in models else "lora"
    batch = 8 if rows < 200 else 32 if rows < 2000 else 128
    yield from {
        "models": models,
        "train": train,
        "optimizer": "adamw",
        "lr": 0.001,
        "lr-schedule": "cosine",
        "batch-size": batch,
        "local-epochs": min(_MOST_EPOCHS, ceil(_STEPS * batch / (0.8 * rows))),
        "verdict.score": "balanced-accuracy",
    }.items()
    if given.get("train", train) == "head":
        yield "representation-norm", "layer"


def _cost(whole: Comparison, *, nodes: bool) -> tuple[int, float]:
    """The runs, and their seconds with one on each core, or at nodes one after the other."""
    speed = estimate.of_nodes() if nodes else estimate.Speed(1, estimate.WARM_START)
    seconds = [
        speed.seconds(whole.config(cell, candidate, seed))
        for cell in whole.cells()
        for candidate in cell.candidates
        for seed in whole.seeds
    ]
    at_once = 1 if nodes else max(1, min(cores(), len(seconds)))
    return len(seconds), sum(seconds) / at_once


def _write(file: Path, content: Mapping[str, object]) -> None:
    """Leaves the file. Raises UserError where it holds another comparison."""
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise UserError(
            f"{file} is there with another comparison: run that with `pfedlora compare`, remove"
            " it, or give another output"
        )
    make_folder(file.absolute().parent)
    check_writable(file.absolute().parent)
    write_atomically(file, text.encode())
