"""Warnings about a run's data before it starts: one line each, the same in a run, a dry run and a
node's log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.partition import Partition
from pfedlora_flwr.data.source import SPLITS
from pfedlora_flwr.errors import looks, some

_MISSING = {"NA", "N/A", "nan", "NaN", "null", "None", ""}
"""What programs write for a value that is missing."""
_PARTS = 3
"""Training, validation and test: a class of fewer samples is missing in one of them."""


def remarks(dataset: Dataset, partition: Partition) -> Iterator[str]:
    """What its reader left out or warns of, the owners that are no clients, the classes without
    samples, names that are nearly equal or are those of missing values, and samples that a client
    trains on and is tested on."""
    yield from dataset.notes
    if partition.owners and dataset.owners is not None:
        names, counts = np.unique(dataset.owners, return_counts=True)
        few = ~np.isin(names.astype(np.str_), partition.owners)
        if few.any():
            told = f"{counts[few].sum()} {dataset.kind.unit} of {few.sum()} owners"
            yield f"left out: {told} that have fewer than partition.min-samples"
    if empty := dataset.empty_classes:
        yield (
            f"{len(empty)} {'class' if len(empty) == 1 else 'classes'} of the dataset"
            f" {'has' if len(empty) == 1 else 'have'} no {dataset.kind.unit}: {some(empty)}"
        )
    yield from _rare(dataset)
    if {name.casefold() for name in dataset.class_names} <= SPLITS.keys():
        yield (
            f"the classes are called {some(dataset.class_names)}, as parts of a dataset"
            " are: if its classes are one folder below, name that folder"
        )
    yield from _near("classes", dataset.class_names)
    yield from _missing("classes", dataset.class_names)
    if dataset.owners is not None:
        owners = [str(owner) for owner in np.unique(dataset.owners)]
        yield from _near("owners", owners)
        yield from _missing("owners", owners)
    yield from _twice(dataset, partition)


def shown_by_sums(dataset: Dataset, partition: Partition, *, sums_alone: bool) -> str:
    """What class sums show of single samples and single clients, counted. sums_alone: of the sum of
    all clients' alone."""
    labels = np.asarray(dataset.labels)
    held = np.stack(
        [np.bincount(labels[s.train], minlength=dataset.classes) for s in partition.clients]
    )
    if not sums_alone:
        single, found = (held == 1).sum(), (held > 0).sum()
        return f"{single} of {found} class sums are of one sample, whose representation each is"
    one = (held > 0).sum(0) == 1
    single = one & (held.sum(0) == 1)
    return (
        f"{one.sum()} of {dataset.classes} classes have one holder, whose class sum stands in the"
        f" masked sum as it is, {single.sum()} of them with one sample, whose representation it is"
    )


def _rare(dataset: Dataset) -> Iterator[str]:
    counts = np.bincount(np.asarray(dataset.labels), minlength=dataset.classes)
    rare = [dataset.class_names[i] for i in np.flatnonzero((counts > 0) & (counts < _PARTS))]
    if rare:
        told = f"fewer than {_PARTS} {dataset.kind.unit}, and so none in some part of the data"
        yield f"{'this class has' if len(rare) == 1 else 'these classes have'} {told}:" + (
            f" {some(rare)}"
        )


def _near(what: str, names: Iterable[str]) -> Iterator[str]:
    """Names that look alike."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(looks(name), []).append(name)
    groups = [", ".join(map(ascii, group)) for group in alike.values() if len(group) > 1]
    if groups:
        yield f"{what} that look alike: {some(groups)}"


def _missing(what: str, names: Iterable[str]) -> Iterator[str]:
    """Names that programs write for a missing value, beside others."""
    given = set(names)
    if (found := given & _MISSING) and given > found:
        told = some(sorted(map(repr, found)))
        yield (
            f"{what} that are called as missing values are: {told}: if they are missing, fill or"
            " remove them"
        )


def _twice(dataset: Dataset, partition: Partition) -> Iterator[str]:
    digests = dataset.hashes
    twice = tests = clients = 0
    for split in partition.clients:
        found = np.isin(digests[split.test], digests[split.train]).sum()
        twice, tests, clients = twice + found, tests + len(split.test), clients + bool(found)
    if twice:
        yield (
            f"{twice} of {tests} test {dataset.kind.unit} stand in the same client's training part,"
            f" too, at {clients} of {len(partition.clients)} clients: accuracies are then too high"
        )
