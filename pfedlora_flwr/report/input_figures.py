"""The figure of clients' inputs: sample images, series as lines, and for tables each client's mean
of each feature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.comparison.plan import Keys
from pfedlora_flwr.comparison.spec import slug
from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.partition import Partition
from pfedlora_flwr.report import words
from pfedlora_flwr.report.data_figures import client_ticks, data_of, first_run, names_height
from pfedlora_flwr.report.figures import Picture
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.style import OKABE_ITO, Place, drawing, literal, panel, save
from pfedlora_flwr.training.kinds import IMAGES, SERIES, TEXT, VECTORS, Kind

_CLIENTS, _CLASSES, _CHANNELS, _FEATURES = 3, 8, 6, 30
"""That are shown, at most."""
_BOXES = 40
"""Clients whose texts' lengths are shown, at most."""
_TITLE = 14
"""Characters beside or above a small panel."""
_PIXELS = 64
"""Of a side of an image, about, in the figure."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Owned:
    """What a figure shows. mean, std: of all clients' training samples. where: its title.
    file: its folder and its name without a suffix."""

    dataset: Dataset
    partition: Partition
    mean: Values
    std: Values
    where: str
    file: tuple[Place, str]


def inputs(study: Study, scenario: Keys, folder: Place) -> Picture:
    """What some clients train on, of the first seed. Raises UserError if the data cannot be
    read."""
    run = first_run(study, scenario)
    dataset, partition = data_of(run)
    mean, std = (np.array(values) for values in run.setup.constants)
    where = f"seed {run.experiment.seed}{words.of(scenario)}"
    file = folder, f"inputs_{slug(scenario) or 'all'}"
    return DRAWN[dataset.kind](_Owned(dataset, partition, mean, std, where, file))


def _images(owned: _Owned) -> Picture:
    def draw(axis: Any, pixels: npt.NDArray[Any]) -> None:
        step = max(1, -(-max(pixels.shape[:2]) // _PIXELS))
        axis.imshow(
            pixels[::step, ::step].squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest"
        )

    return _samples(owned, draw)


def _series(owned: _Owned) -> Picture:
    channels = owned.dataset.shape[0]
    first = "its channels"
    if channels > _CHANNELS:
        first = f"the first {_CHANNELS} of its {channels} channels"

    def draw(axis: Any, one: npt.NDArray[Any]) -> None:
        normalised = (one - owned.mean[:, None]) / owned.std[:, None]
        for i, line in enumerate(normalised[:_CHANNELS]):
            axis.plot(line, color=OKABE_ITO[i], linewidth=0.5)

    told = f" A line each for {first}, over time, normalised as the models see them."
    return _samples(owned, draw, told, sharey=True)


def _samples(
    owned: _Owned,
    draw: Callable[[Any, npt.NDArray[Any]], None],
    told: str = "",
    *,
    sharey: bool = False,
) -> Picture:
    """A row a client, a column a class. draw: a sample as a dataset has it, on an axis."""
    dataset, partition = owned.dataset, owned.partition
    labels, owners = np.asarray(dataset.labels), literal(partition.owners or (), _TITLE)
    clients = np.unique(np.linspace(0, len(partition.clients) - 1, _CLIENTS, dtype=int)).tolist()
    held = np.unique(np.concatenate([labels[partition.clients[k].train] for k in clients]))
    classes = held[:_CLASSES].tolist()  # those that a client shown here has
    size = 0.95 * len(classes) + 0.5, 0.9 * len(clients) + 0.4
    with drawing(len(clients), len(classes), size, sharey=sharey) as (figure, axes):
        for row, client in zip(axes, clients, strict=True):
            train = partition.clients[client].train
            for axis, label in zip(row, classes, strict=True):
                axis.set(xticks=[], yticks=[])
                axis.grid(visible=False)
                for side in axis.spines.values():
                    side.set_visible(False)
                if len(own := train[labels[train] == label]):
                    draw(axis, np.asarray(dataset.inputs[own[0]]))
            row[0].set_ylabel(owners[client] if owners else f"client {client}", fontsize=7)
        titles = literal([dataset.class_names[label] for label in classes], _TITLE)
        for axis, title in zip(axes[0], titles, strict=True):
            axis.set_title(title, fontsize=7)
        figure.suptitle(owned.where, fontsize=8)
        path = save(figure, *owned.file)
    first = f"The first training sample of a client and class, {owned.where}; blank: it has none."
    return Picture(path, first + told)


def _vectors(owned: _Owned) -> Picture:
    """A column a client, a row a feature."""
    dataset, partition = owned.dataset, owned.partition
    every = dataset.feature_names or tuple(f"feature {i}" for i in range(dataset.shape[0]))
    means = [dataset.inputs[c.train].mean(0, dtype=np.float64) for c in partition.clients]
    own = np.stack([(mean - owned.mean) / owned.std for mean in means], axis=1)
    rows = np.sort(np.argsort(-own.std(1), kind="stable")[:_FEATURES])
    most = max(float(np.abs(own[rows]).max()), 1e-9)
    size = 4.6, 0.9 + 0.14 * len(rows) + names_height(partition)
    with panel(size) as (figure, axis):
        axis.grid(visible=False)
        image = axis.imshow(
            own[rows], aspect="auto", cmap="PuOr", vmin=-most, vmax=most, interpolation="nearest"
        )
        figure.colorbar(image, label="standard deviations")
        axis.set_yticks(range(len(rows)), literal([every[i] for i in rows]), fontsize=6)
        client_ticks(axis, partition)
        axis.set_title(f"{owned.where}\na cell: a client's mean of a feature")
        path = save(figure, *owned.file)
    shown = f" (the {_FEATURES} in which clients differ most)" if len(every) > _FEATURES else ""
    return Picture(
        path,
        f"Each client's mean of each feature{shown}, {owned.where}: in standard deviations of all"
        " clients' training samples, from their mean.",
    )


def _texts(owned: _Owned) -> Picture:
    """A box a client: the lengths of its training texts."""
    dataset, partition = owned.dataset, owned.partition
    shown = partition.clients[:_BOXES]
    lengths = [np.count_nonzero(dataset.inputs[split.train], axis=1) for split in shown]
    with panel((4.6, 2.4)) as (figure, axis):
        axis.boxplot(lengths, positions=range(len(shown)), flierprops={"markersize": 2})
        axis.set_xticks(range(len(shown)), [str(k) for k in range(len(shown))], fontsize=6)
        axis.set_xlabel("client")
        axis.set_ylabel("bytes")
        axis.set_title(owned.where)
        path = save(figure, *owned.file)
    first = f" of the first {_BOXES} clients" if len(partition.clients) > _BOXES else ""
    return Picture(
        path,
        f"The lengths of the training texts{first}, {owned.where}: median, quartiles and those"
        f" beyond. A text's first {dataset.inputs.shape[1]} bytes are read, as tokens.",
    )


DRAWN: dict[Kind, Callable[[_Owned], Picture]] = {
    IMAGES: _images,
    SERIES: _series,
    VECTORS: _vectors,
    TEXT: _texts,
}
"""How clients' inputs of each kind are drawn."""
