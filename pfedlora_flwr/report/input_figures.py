"""The figure of what clients own: sample images, series as lines, and of tables each client's mean of each feature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.comparison.plan import Keys
from pfedlora_flwr.comparison.spec import slug
from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.local import shared_constants
from pfedlora_flwr.data.partition import Partition
from pfedlora_flwr.report import words
from pfedlora_flwr.report.data_figures import client_ticks, data_of, first_run
from pfedlora_flwr.report.figures import Picture
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.style import OKABE_ITO, drawing, save

_CLIENTS, _CLASSES, _CHANNELS, _FEATURES = 3, 8, 6, 30
"""That are shown, at most."""
_PIXELS = 64
"""Of a side of an image, about, in the figure."""

Values = npt.NDArray[np.float64]


def inputs(study: Study, scenario: Keys, folder: Path) -> Picture:
    """What some clients train on, of the first seed. Raises UserError where the data cannot be read."""
    run = first_run(study, scenario)
    dataset, partition = data_of(run)
    mean, std = (np.array(values) for values in shared_constants(run.experiment))
    name, where = (
        f"inputs_{slug(scenario) or 'all'}",
        f"{words.keys(scenario)}, seed {run.experiment.seed}",
    )
    if dataset.kind == "vectors":
        path, told = (
            _means(dataset, partition, mean, std, where, folder, name),
            "Each client's mean of each feature",
        )
        shown = (
            f" (the {_FEATURES} in which clients differ most)"
            if dataset.shape[0] > _FEATURES
            else ""
        )
        return Picture(
            path,
            f"{told}{shown}, {where}: in standard deviations of all clients' training samples, from their mean.",
        )
    path = _samples(dataset, partition, mean, std, where, folder, name)
    told = f"The first training sample of a client and class, {where}; blank: it has none."
    if dataset.kind == "images":
        return Picture(path, told)
    channels = dataset.shape[0]
    first = (
        f"the first {_CHANNELS} of its {channels} channels"
        if channels > _CHANNELS
        else "its channels"
    )
    return Picture(
        path, f"{told} A line each for {first}, over time, normalised as the models see them."
    )


def _samples(
    dataset: Dataset,
    partition: Partition,
    mean: Values,
    std: Values,
    where: str,
    folder: Path,
    name: str,
) -> Path:
    """A row a client, a column a class."""
    labels = np.asarray(dataset.labels)
    clients = np.unique(np.linspace(0, len(partition.clients) - 1, _CLIENTS, dtype=int)).tolist()
    classes = range(min(_CLASSES, dataset.classes))
    size = 0.95 * len(classes) + 0.5, 0.9 * len(clients) + 0.4
    with drawing(len(clients), len(classes), size, sharey=dataset.kind == "series") as (
        figure,
        axes,
    ):
        for row, client in zip(axes, clients, strict=True):
            train = partition.clients[client].train
            for axis, label in zip(row, classes, strict=True):
                axis.set(xticks=[], yticks=[])
                axis.grid(visible=False)
                for side in axis.spines.values():
                    side.set_visible(False)
                if len(own := train[labels[train] == label]):
                    _draw(axis, np.asarray(dataset.inputs[own[0]]), mean, std)
            row[0].set_ylabel(
                partition.owners[client] if partition.owners else f"client {client}", fontsize=7
            )
        for axis, label in zip(axes[0], classes, strict=True):
            axis.set_title(dataset.class_names[label], fontsize=7)
        figure.suptitle(where, fontsize=8)
        return save(figure, folder, name)


def _draw(axis: Any, one: npt.NDArray[Any], mean: Values, std: Values) -> None:
    """An image [height, width, channels], or a series [channels, time]."""
    if one.ndim == 3:
        step = max(1, -(-max(one.shape[:2]) // _PIXELS))
        axis.imshow(
            one[::step, ::step].squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest"
        )
        return
    for i, line in enumerate(((one - mean[:, None]) / std[:, None])[:_CHANNELS]):
        axis.plot(line, color=OKABE_ITO[i], linewidth=0.5)


def _means(
    dataset: Dataset,
    partition: Partition,
    mean: Values,
    std: Values,
    where: str,
    folder: Path,
    name: str,
) -> Path:
    """A column a client, a row a feature."""
    every = dataset.feature_names or tuple(f"feature {i}" for i in range(dataset.shape[0]))
    own = np.stack(
        [
            (dataset.inputs[split.train].mean(0, dtype=np.float64) - mean) / std
            for split in partition.clients
        ],
        axis=1,
    )
    rows = np.sort(np.argsort(-own.std(1), kind="stable")[:_FEATURES])
    most = max(float(np.abs(own[rows]).max()), 1e-9)
    with drawing(1, 1, (4.6, 0.9 + 0.14 * len(rows))) as (figure, axes):
        axis = axes[0][0]
        axis.grid(visible=False)
        image = axis.imshow(
            own[rows], aspect="auto", cmap="PuOr", vmin=-most, vmax=most, interpolation="nearest"
        )
        figure.colorbar(image, label="standard deviations")
        axis.set_yticks(range(len(rows)), [every[i] for i in rows], fontsize=6)
        client_ticks(axis, partition)
        axis.set_title(f"{where}\na cell: a client's mean of a feature")
        return save(figure, folder, name)
