"""`pfedlora evaluate`: clients' personalised models on labelled samples, from the client's own test
part or a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NotRequired, TypedDict, cast

import numpy as np
import torch
from torch import Tensor

from pfedlora_flwr import config
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.local import Site, reading_for
from pfedlora_flwr.data.registry import find, is_function, takes_path
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.errors import UserError, some
from pfedlora_flwr.federation.visit import with_encoded
from pfedlora_flwr.ops.read_inputs import with_keys
from pfedlora_flwr.runs.trained import Trained
from pfedlora_flwr.training.kinds import VECTORS
from pfedlora_flwr.training.loop import Samples
from pfedlora_flwr.training.metrics import SCORES, predictions

OWN = "its own test part"
_AS_THE_RUN: Mapping[str, object] = {}
_NAMED = 5
"""Class names in a message."""


class ClassRecall(TypedDict):
    """A class that has samples, in `pfedlora evaluate --json`."""

    name: str
    samples: int
    recall: float  # the share of these that the model takes for it


class Evaluation(TypedDict):
    """`pfedlora evaluate --json`: a client's model on labelled samples. Shares are in [0, 1];
    scores as in ScoreFields, null where one is not defined."""

    client: int
    data: str
    samples: int
    accuracy: float
    balanced_accuracy: float
    macro_f1: float
    auroc: float | None
    average_precision: float | None
    log_loss: float | None
    ece: float | None
    classes: list[ClassRecall]
    # whether the data holds inputs that the run's clients (of a site's own data, this client) were
    # trained on, wherever it lies; null where the run's data is not here, or has changed
    seen: bool | None
    # whether labels were matched by number, since either side's classes have no names
    by_number: bool
    # whether columns were matched by place, since the data's have no names
    by_place: bool
    # of the client's own test part, where they are asked for: the samples' places in the run's
    # dataset, ascending, from 1
    rows: NotRequired[list[int]]
    # where it is asked for: samples by true class (rows) and predicted class (columns)
    confusion: NotRequired[list[list[int]]]


def evaluate(
    models: Iterable[Trained],
    data: str | None,
    options: Mapping[str, object] = _AS_THE_RUN,
    *,
    rows: bool = False,
    confusions: bool = False,
) -> list[Evaluation]:
    """Each model on the dataset `data`, named as in the key `dataset`, or, without it, on its
    client's own test part. options: the dataset's keys `data.…`, where they are not the run's, and
    `data-path`.

    The latter counts what the run counted, on a CPU to the last sample. Raises UserError if data
    is missing, not the run's, or of other inputs or classes than the model's."""
    torch.set_num_threads(1)  # as in the run: sums in another order can turn a close decision
    if rows and data is not None:
        raise UserError("rows=true lists the client's own test part: leave DATA out")
    if options and data is None:
        raise UserError(f"{next(iter(options))} is of a dataset: give DATA, too, or leave it out")
    return [
        _evaluate(trained, data, options, rows=rows, confusions=confusions) for trained in models
    ]


def _evaluate(
    trained: Trained,
    data: str | None,
    options: Mapping[str, object],
    *,
    rows: bool,
    confusions: bool,
) -> Evaluation:
    places: list[int] = []
    if data is None:
        samples, places = own_part(trained, "test")
        seen: bool | None = False
        by_number = by_place = False
    else:
        path = trained.about["site"]["data-path"] if data == trained.experiment.dataset else ""
        dataset = _load(trained, data, {"data-path": path, **options})
        seen = _seen(trained, dataset)
        labels, by_number = _labels(trained.class_names, dataset)
        unnamed = trained.feature_names and not dataset.feature_names
        by_place = bool(unnamed) and dataset.kind == VECTORS
        samples = trained.samples(dataset.inputs, labels)
    samples = with_encoded(trained.method, trained.module, samples)
    names = trained.class_names
    found = predictions(trained.method.predictor(trained.module), samples, len(names))
    matrix, scores = found.confusion, {name: score(found) for name, score in SCORES.items()}
    classes: list[ClassRecall] = [
        {"name": name, "samples": count, "recall": int(matrix[i, i]) / count}
        for i, (name, count) in enumerate(zip(names, matrix.sum(1).tolist(), strict=True))
        if count
    ]
    whole = {
        "client": trained.client,
        "data": data or OWN,
        "samples": len(samples),
        **scores,
        "classes": classes,
        "seen": seen,
        "by_number": by_number,
        "by_place": by_place,
    }
    result = cast(Evaluation, whole)
    if rows:
        result["rows"] = places
    if confusions:
        result["confusion"] = matrix.tolist()
    return result


def _load(trained: Trained, data: str, options: Mapping[str, object]) -> Dataset:
    """The dataset as the model takes it: a table's columns by their names. Raises UserError if
    its inputs are others."""
    task, path = trained.task, config.parse({"data-path": options["data-path"]})["data-path"]
    keys = {name: value for name, value in options.items() if name != "data-path"}
    allowed = [
        name for name in find(data).columns if name not in ("data.client-column", "split.column")
    ]
    if path and not takes_path(data):
        raise UserError(f"data-path is not used: dataset {data!r} takes no files from there")
    how = reading_for(task, DataSetup(with_keys(trained.experiment, keys, allowed), path))
    how = replace(
        how,
        client_column=None,
        split_column=None,
        passed_over=how.client_column,
        feature_names=trained.feature_names,
        one_class=True,
    )
    dataset = datasets.load(data, how)
    if (dataset.kind, dataset.shape) != (task.kind, task.shape):
        raise UserError(
            f"{data} holds {dataset.kind.of(dataset.shape)}, and the model of client"
            f" {trained.client} takes {task}"
        )
    if dataset.kind == VECTORS and dataset.feature_names and not trained.feature_names:
        raise UserError(
            f"{data} names its columns, and the model of client {trained.client} does not know its"
            " own by name, because its data had no names; give arrays (npz:FILE)"
        )
    return dataset


def own_part(trained: Trained, part: str) -> tuple[Samples, list[int]]:
    """A part of the client's samples ("validation", "test"), normalised as in its run, and their
    places in the dataset, from 1. Raises UserError when they are not here any more."""
    about, client = trained.about, trained.client
    site = Site.find(trained.experiment, client, about["site"])
    data, own = site.dataset, getattr(site.split, part)
    if not _is_as_it_was(site, trained):
        raise UserError(
            f"the data of {data.name} is not what client {client} was trained on; restore it, or"
            " give DATA"
        )
    labels = torch.from_numpy(np.asarray(data.labels[own]))
    return trained.samples(data.inputs[own], labels), sorted((own + 1).tolist())


def _is_as_it_was(site: Site, trained: Trained) -> bool:
    """Whether the data of the client's site is what it was trained on."""
    names, own, counts = trained.feature_names, trained.own_data, trained.counts
    return (
        (not names or names == site.dataset.feature_names)
        and site.fingerprint == trained.about.get("partition")
        and (not own or own == site.own_data)
        and (not counts or counts.test <= len(site.split.test))  # by its policy fewer take part
    )


def _seen(trained: Trained, data: Dataset) -> bool | None:
    """Whether the data holds inputs that clients of the run were trained on; None where the run's
    data is not here, or is another now. Nothing is downloaded."""
    e, where = trained.experiment, trained.about["site"]
    setup, own = DataSetup(e, where["data-path"]), "dataset" in where
    how = reading_for(trained.task, setup) if own else setup.reading
    try:
        if datasets.needs_download(where.get("dataset", e.dataset), how):
            return None
        site = Site.find(e, trained.client, where)
    except UserError:
        return None
    if not _is_as_it_was(site, trained):
        return None
    parts = [site.split.train]
    if not own:  # what others' updates have brought into the model
        parts += [split.train for split in setup.trained]
    return bool(np.isin(data.input_hashes, site.dataset.input_hashes[np.concatenate(parts)]).any())


def _labels(names: Sequence[str], data: Dataset) -> tuple[Tensor, bool]:
    """The data's labels as the model counts its classes, int64 [n]; and whether they were matched
    by number.

    By name wherever the model has every class that has a sample, but not if it has names and the
    data's are their numbers. Raises UserError if it has not, unless there are no names."""
    labels = np.array(data.labels)
    there = np.unique(labels).tolist()
    unknown = [data.class_names[i] for i in there if data.class_names[i] not in names]
    if not unknown and (_unnamed(names) or not _numbered(data)):
        place = np.array([names.index(name) if name in names else -1 for name in data.class_names])
        return torch.from_numpy(place[labels]), False
    if not (_unnamed(names) or _unnamed(data.class_names)):
        raise UserError(
            f"{data.name} has classes that the model lacks ({some(unknown, _NAMED)}); the"
            f" model's: {some(names, _NAMED)}; data.class-map=FILE renames its own"
        )
    if there[-1] >= len(names):
        raise UserError(
            f"{data.name} has labels up to {there[-1]}, and the model {len(names)} classes"
        )
    return torch.from_numpy(labels), True


def _numbered(data: Dataset) -> bool:
    """Whether its classes have their numbers for names, since arrays have no others; a column's
    values are names."""
    arrays = data.name.startswith("npz:") or is_function(data.name)
    return arrays and _unnamed(data.class_names)


def _unnamed(names: Sequence[str]) -> bool:
    """Whether the classes are numbered: what a dataset without names gives them, and what fills a
    model up to its classes."""
    return all(name in (str(i), f"class {i}") for i, name in enumerate(names))
