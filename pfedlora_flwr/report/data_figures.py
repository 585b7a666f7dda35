"""The figures that need a run's data and models: each client's classes, and the encoders'
representations of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.comparison.plan import Keys
from pfedlora_flwr.comparison.spec import slug
from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.partition import Partition
from pfedlora_flwr.data.source import Inputs
from pfedlora_flwr.errors import UserError, printable
from pfedlora_flwr.report import words
from pfedlora_flwr.report.figures import Picture
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.style import MARKERS, OKABE_ITO, Place, drawing, literal, panel, save
from pfedlora_flwr.runs.completed import Run
from pfedlora_flwr.runs.data_name import own_in_words
from pfedlora_flwr.runs.site_names import names_told
from pfedlora_flwr.runs.trained import load_trained

_POINTS = 800
_MOST_CLASSES = 20
_NUMBERED = 150
"""Cells of a partition that a number each still fits into."""
_MOST_NAMED, _BROAD = 30, 40
"""Owners whose names stand at an axis, and the letters of all of them that fit there side by
side."""
_LETTER = 0.06
"""Inches of a letter of theirs."""
_PALEST = 0.12
"""Opacity of a cell with one sample."""


def histogram(study: Study, scenario: Keys, folder: Place) -> Picture:
    """Samples of each class on each client, of the first seed. Raises UserError if the data
    cannot be read."""
    run = first_run(study, scenario)
    dataset, partition = data_of(run)
    labels = np.asarray(dataset.labels)
    owned = [np.concatenate(split.parts) for split in partition.clients]
    # [classes, clients]
    counts = np.stack(
        [np.bincount(labels[own], minlength=dataset.classes) for own in owned], axis=1
    )
    where = f"seed {run.experiment.seed}{words.of(scenario)}"
    with panel((4.6, 2.8 + names_height(partition))) as (figure, axis):
        axis.grid(visible=False)
        image = axis.imshow(
            counts, aspect="auto", cmap=_shades(int(counts.max())), vmin=0, interpolation="nearest"
        )
        figure.colorbar(image, label=dataset.kind.unit)
        if counts.size <= _NUMBERED:
            for (c, client), n in np.ndenumerate(counts):
                if n:
                    colour = "white" if 2 * n > counts.max() else "black"
                    axis.text(client, c, n, ha="center", va="center", size=6, color=colour)
        client_ticks(axis, partition)
        axis.set_ylabel("class")
        if dataset.classes <= _MOST_CLASSES:
            axis.set_yticks(range(dataset.classes), literal(dataset.class_names))
        axis.set_title(f"{where}\na cell: a client's {dataset.kind.unit} of a class")
        path = save(figure, folder, f"partition_{slug(scenario) or 'all'}")
    natural = (
        " The clients are those whom the data names as its owners." if partition.owners else ""
    )
    cell = (
        f"A cell is a client's {dataset.kind.unit} of one class, all its parts together; blank:"
        f" none.{natural}"
    )
    return Picture(path, f"The partition, {where}. {cell}")


def representations(study: Study, scenario: Keys, folder: Place) -> Picture:
    """t-SNE of the last layer's inputs for the clients' test samples, each through its own client's
    model; a panel a method.

    Raises UserError if the data or the models cannot be read, or there are too many classes to
    tell apart."""
    runs, absent = _on_the_same_data(study, scenario)
    first = next(iter(runs.values()))
    seed = first.experiment.seed
    dataset, partition = data_of(first)
    if dataset.classes > _MOST_CLASSES:
        raise UserError(f"{dataset.classes} classes are too many to tell apart")
    indices = _spread(partition)
    inputs = [dataset.inputs[own] for own in indices]
    labels = [np.asarray(dataset.labels)[own] for own in indices]
    columns = 2 if len(runs) in (2, 4) else min(3, len(runs))
    rows = -(-len(runs) // columns)
    left_out = 0
    with drawing(rows, columns, (2.3 * columns + 0.9, 2.3 * rows + 0.2)) as (figure, axes):
        for axis in axes.flat[len(runs) :]:
            axis.axis("off")
        for axis, (title, run) in zip(axes.flat, runs.items(), strict=False):
            places, drawn = _embed(run, inputs)
            left_out = max(left_out, len(inputs) - len(drawn))
            shown = np.concatenate([labels[client] for client in drawn])
            _scatter(axis, places, shown, dataset.class_names)
            axis.set_title(title)
        handles, names = axes.flat[0].get_legend_handles_labels()
        figure.legend(
            handles, names, loc="outside right upper", frameon=False, title="class", markerscale=1.8
        )
        figure.suptitle(words.keys(scenario), fontsize=8)
        figure.supxlabel(
            f"a point: one of the test {dataset.kind.unit},\nas its own client's model sees it",
            fontsize=7,
        )
        path = save(figure, folder, f"t_sne_{slug(scenario) or 'all'}")
    caption = (
        f"A point is one of the test {dataset.kind.unit}: the input of the last layer of its own"
        " client's final model, laid out in two dimensions by t-SNE, for each method by itself"
        f"{words.of(scenario)}, seed {seed}. The axes have no unit; only what lies together"
        " counts."
    )
    if left_out:
        caption += f" Left out: {left_out} clients without a trained model."
    if absent:
        caption += f" Without a run on these data: {', '.join(absent)}."
    return Picture(path, caption)


def data_of(run: Run) -> tuple[Dataset, Partition]:
    """The run's data, if it is here: a report downloads nothing. Raises UserError when it is not,
    or is not what the run had."""
    setup, name = run.setup, run.experiment.dataset
    if own_in_words(run.result):
        raise UserError("the run's sites had data of their own, which is not here")
    if setup.needs_download:
        raise UserError(f"{name} is not on this machine")
    if setup.partition.fingerprint != run.result["partition"]:
        raise UserError(f"the run's clients did not have the data that {name} holds here")
    return setup.dataset, setup.partition


def site_name(run: Run, client: int) -> str:
    """What the run's data calls a client, if it is here and says so, or its node."""
    try:
        names = dict(enumerate(data_of(run)[1].owners))
    except UserError:
        names = names_told(run.directory)
    return printable(names.get(client, f"client {client}"))


def first_run(study: Study, scenario: Keys) -> Run:
    """Of the first method and seed that have one."""
    return next(iter(study.in_scenario(scenario)[0].runs.values()))


def names_height(partition: Partition) -> float:
    """Inches that the owners' names take below a figure where they stand upright."""
    names = _owners_shown(partition)
    return _LETTER * max(map(len, names)) if _upright(names) else 0


def client_ticks(axis: Any, partition: Partition) -> None:
    """The clients along the x axis: numbers, or the owners' names where there are few."""
    clients, names = len(partition.clients), _owners_shown(partition)
    axis.set_xlabel("client")
    if names:
        axis.set_xticks(range(clients), names, rotation=90 if _upright(names) else 0)
    else:
        axis.set_xticks(np.unique(np.linspace(0, clients - 1, min(10, clients), dtype=int)))


def _owners_shown(partition: Partition) -> list[str]:
    owners = partition.owners or ()
    return literal(owners) if len(owners) <= _MOST_NAMED else []


def _upright(names: Sequence[str]) -> bool:
    return len(names) * max(map(len, names), default=0) > _BROAD


def _shades(most: int) -> Any:
    """A colour for each count from 0, which is blank, to `most`: any sample at all is seen."""
    from matplotlib.colors import ListedColormap, to_rgb

    alphas = np.linspace(_PALEST, 1.0, most)
    return ListedColormap([(0, 0, 0, 0), *((*to_rgb(OKABE_ITO[6]), alpha) for alpha in alphas)])


def _on_the_same_data(study: Study, scenario: Keys) -> tuple[dict[str, Run], list[str]]:
    """By the methods' titles a run each, all of one seed (the first of those that most methods
    have) and one partition; the titles of those that have none."""
    outcomes = study.ordered(scenario)
    seeds = [seed for o in outcomes for seed in o.runs]
    seed = max(seeds, key=seeds.count)
    found = {o.title: o.runs[seed] for o in outcomes if seed in o.runs}
    first = next(iter(found.values()))
    runs = {
        title: run
        for title, run in found.items()
        if run.result["partition"] == first.result["partition"]
    }
    return runs, [o.title for o in outcomes if o.title not in runs]


def _spread(partition: Partition) -> list[npt.NDArray[np.int64]]:
    """For each client the indices of some of its test samples, evenly spread: about `_POINTS` in
    all."""
    share = max(1, _POINTS // len(partition.clients))
    tests = [split.test for split in partition.clients]
    return [test[np.linspace(0, len(test) - 1, min(share, len(test)), dtype=int)] for test in tests]


def _scatter(
    axis: Any, places: npt.NDArray[np.float32], labels: npt.NDArray[Any], class_names: Sequence[str]
) -> None:
    """Points at `places` [n, 2], coloured by class."""
    for c, name in enumerate(literal(class_names)):
        at, colour, cycle = places[labels == c], OKABE_ITO[c % len(OKABE_ITO)], c // len(OKABE_ITO)
        # the second is hollow
        look = {
            "facecolor": "none" if cycle % 2 else colour,
            "edgecolor": colour,
            "marker": MARKERS[cycle],
        }
        axis.scatter(at[:, 0], at[:, 1], s=8, label=name, linewidth=0.7, **look)
    axis.set_xticks([])
    axis.set_yticks([])


def _embed(run: Run, inputs: Sequence[Inputs]) -> tuple[npt.NDArray[np.float32], list[int]]:
    """[n, 2]: one embedding for the inputs of all clients that have a trained model, in client
    order; and those clients."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    seen: dict[int, npt.NDArray[np.float32]] = {}
    failures: list[UserError] = []
    last = {int(k) for k, told in run.result["per_client"].items() if told["last_round"]}
    for client, own in enumerate(inputs):
        try:
            seen[client] = load_trained(run.path, client).representations(own).numpy()
        except UserError as error:  # never sampled, or its file is gone
            if run.directory.client_store(client).versions() and client in last:
                raise  # or damaged
            failures.append(error)
    if not seen:
        raise failures[0]
    found = np.concatenate(list(seen.values()))
    perplexity = min(30.0, (len(found) - 1) / 3)
    # its threads wait for each other busily: on a machine with other work, many are far slower than
    # one
    with threadpool_limits(1):
        tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=0)
        return tsne.fit_transform(found), list(seen)
