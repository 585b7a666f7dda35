"""The assignment of samples to clients: pathological (after pFedHN), dirichlet, iid or from the
data; `split.py` divides each client's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np

from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.source import Indices
from pfedlora_flwr.data.split import Split, dealt, divided
from pfedlora_flwr.errors import UserError, wrong
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.rng import numpy_generator

NATURAL = "natural"
_WHERE = "a table does by data.client-column, an npz file by `clients`"
SMALLEST = 10
"""Samples a client needs for one of each ten to be validation and one to be test."""


@dataclass(frozen=True)
class Partition:
    """Every client's split; owners: who they are, feature_names: of the columns, where the data
    says it. values: a hash of all samples; empty where the dataset's name says which they are."""

    clients: tuple[Split, ...]
    owners: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    values: str = ""

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all indices, in order, of the columns' names and of `values`: equal
        fingerprints mean equal data for every client."""
        digest = hashlib.sha256()
        for split in self.clients:
            for part in split.parts:
                digest.update(
                    len(part).to_bytes(8, "little") + np.ascontiguousarray(part, "<i8").tobytes()
                )
        if self.feature_names:
            digest.update(json.dumps(self.feature_names).encode())
        digest.update(self.values.encode())
        return digest.hexdigest()


def make_partition(
    experiment: Experiment, dataset: Dataset, known: Indices | None = None
) -> Partition:
    """The partition that the Experiment names, always the same for the same seed. known: the part
    that each sample has already (`divided`). Raises UserError when it is impossible."""
    made, last = _made(experiment, dataset, known), experiment.partition.last
    clients = experiment.clients
    if last is None:
        return made
    if last >= clients:
        raise UserError(f"partition.last is {last}; allowed: 0 to {clients - 1}, of clients")
    order = [*range(last), *range(last + 1, clients), last]
    return replace(
        made,
        clients=tuple(made.clients[k] for k in order),
        owners=tuple(made.owners[k] for k in order) if made.owners else (),
    )


def _made(e: Experiment, dataset: Dataset, known: Indices | None) -> Partition:
    """The same with the clients as they come."""
    labels = np.asarray(dataset.labels)
    if len(labels) < SMALLEST:
        raise UserError(
            f"{e.dataset} has {len(labels)} {dataset.kind.unit}; a client needs {SMALLEST}"
        )
    if e.partition.kind == NATURAL:
        return _natural(e, dataset, known)
    if e.clients * SMALLEST > len(labels):
        has = f"{e.dataset} has {len(labels)} {dataset.kind.unit}, {SMALLEST} for each client"
        raise UserError(f"clients is {e.clients}; {has}: allowed ≤ {len(labels) // SMALLEST}")
    pool = dealt(e, dataset)
    if pool is None:
        owned = DRAWN[e.partition.kind](e, labels, dataset.classes)
    else:
        owned = [pool[own] for own in DRAWN[e.partition.kind](e, labels[pool], dataset.classes)]
    smallest = min(range(e.clients), key=lambda k: len(owned[k]))
    if len(owned[smallest]) < SMALLEST:
        raise UserError(
            f"client {smallest} would have {len(owned[smallest])} samples, and needs {SMALLEST};"
            " use fewer clients or more classes a client"
        )
    splits = _splits(e, dataset, owned, known)
    return Partition(splits, feature_names=dataset.feature_names or (), values=dataset.values)


def _natural(e: Experiment, dataset: Dataset, known: Indices | None) -> Partition:
    """The clients are the owners of at least `partition.min-samples` samples, in sorted order."""
    if dataset.owners is None:
        raise UserError(
            f"partition.kind is {NATURAL}, and {e.dataset} has no owners of samples: {_WHERE}"
        )
    names, owner, counts = np.unique(dataset.owners, return_inverse=True, return_counts=True)
    enough = np.flatnonzero(counts >= e.partition.min_samples)
    if len(enough) != e.clients:
        left_out = ""
        if len(enough) < len(names):
            left_out = f" ({len(names) - len(enough)} have fewer and are left out)"
        have = (
            f"{e.dataset} has {len(enough)} owners of at least {e.partition.min_samples}"
            f" samples{left_out}"
        )
        raise UserError(
            f"clients is {e.clients}; {have}: "
            + (f"set clients={len(enough)}" if len(enough) else "lower partition.min-samples")
        )
    return Partition(
        _splits(e, dataset, [np.flatnonzero(owner == place) for place in enough], known),
        tuple(str(name) for name in names[enough]),
        dataset.feature_names or (),
        dataset.values,
    )


def pathological(e: Experiment, labels: Indices, classes: int) -> list[Indices]:
    """k distinct classes a client; each class is cut into m = kN/C shares of random size.

    Shares are U(0.4, 0.6) normalised. Clients in order choose their classes, each uniformly among
    those with the most unclaimed shares."""
    clients, per_client = e.clients, e.partition.classes_per_client
    if per_client > classes:
        allowed = f"1 to {classes}, the classes of the dataset"
        raise wrong("partition.classes-per-client", per_client, allowed)
    shares, rest = divmod(clients * per_client, classes)
    if rest:
        raise UserError(
            f"{clients} clients × {per_client} classes a client is not a multiple of the {classes}"
            " classes; change clients or partition.classes-per-client so that it is, or use"
            " partition.kind=dirichlet"
        )
    sizes = numpy_generator(e.seed, "partition/shares").uniform(0.4, 0.6, (classes, shares))
    sizes /= sizes.sum(1, keepdims=True)
    chooser = numpy_generator(e.seed, "partition/classes")
    shuffler = numpy_generator(e.seed, "partition/shuffle")
    unclaimed = np.full(classes, shares)
    owned: list[list[Indices]] = [[] for _ in range(clients)]
    pools = [shuffler.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    counts = [np.floor(len(pool) * sizes[c]).astype(int) for c, pool in enumerate(pools)]
    ends = [np.cumsum(count) for count in counts]
    for k in range(clients):
        held = np.zeros(classes, bool)
        for _ in range(per_client):
            open_shares = np.where(held, -1, unclaimed)
            c = int(chooser.choice(np.flatnonzero(open_shares == open_shares.max())))
            share = shares - unclaimed[c]
            owned[k].append(pools[c][ends[c][share] - counts[c][share] : ends[c][share]])
            held[c] = True
            unclaimed[c] -= 1
    return [np.concatenate(parts) for parts in owned]


def dirichlet(e: Experiment, labels: Indices, classes: int) -> list[Indices]:
    """Each class is divided among the clients by proportions from Dir(α); drawn again until every
    client has enough."""
    clients, alpha = e.clients, e.partition.alpha
    rng = numpy_generator(e.seed, "partition/dirichlet")
    held = [np.flatnonzero(labels == c) for c in range(classes)]
    for _ in range(1000):
        pools, cuts, sizes = [], [], np.zeros(clients, int)
        for own in held:
            pools.append(rng.permutation(own))
            ends = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(own)
            cuts.append(ends.astype(int))
            sizes += np.diff(cuts[-1], prepend=0, append=len(own))
        if sizes.min() >= SMALLEST:
            parts = zip(*map(np.split, pools, cuts), strict=True)
            return [np.concatenate(of_client) for of_client in parts]
    raise UserError(
        f"partition.alpha is {alpha:g}: in 1000 draws some client had fewer than {SMALLEST}"
        " samples; raise alpha or use fewer clients"
    )


def iid(e: Experiment, labels: Indices, classes: int) -> list[Indices]:
    """Shuffled, and cut into equal parts."""
    order = numpy_generator(e.seed, "partition/iid").permutation(len(labels))
    return np.array_split(order, e.clients)


DRAWN: dict[str, Callable[[Experiment, Indices, int], list[Indices]]] = {
    "pathological": pathological,
    "dirichlet": dirichlet,
    "iid": iid,
}
"""`partition.kind` → what draws each client's samples, of the Experiment, all labels and the number
of classes; in the order of help."""
KINDS = (*DRAWN, NATURAL)


def _splits(
    e: Experiment, dataset: Dataset, owned: list[Indices], known: Indices | None
) -> tuple[Split, ...]:
    """Each client's samples in parts, of the training part what it may have."""
    found = divided(e, dataset, dict(enumerate(owned)), known)
    return tuple(trimmed(e, dataset.labels, split, k) for k, split in found.items())


def trimmed(e: Experiment, labels: Indices, split: Split, client: int) -> Split:
    """The split with as many training samples as the client may have."""
    n, most = len(split.train), e.partition.samples_per_client
    most = min(n if most is None else most, max(1, ceil(e.partition.share * n)))
    if most < n:
        return replace(split, train=few(labels, split.train, most, e.seed, client))
    return split


def few(labels: Indices, train: Indices, most: int, seed: int, client: int) -> Indices:
    """The first `most` of a training part, taken from its classes in turn; they keep their order.

    The turn begins at a class that is drawn for the client. Fewer are always some of more."""
    held, of = np.unique(labels[train], return_inverse=True)
    turn = numpy_generator(seed, "partition/few", client).permutation(len(held))[of]
    return train[np.sort(np.lexsort((turn, places_in_class(of)))[:most])]


def places_in_class(labels: Indices) -> Indices:
    """How many samples of the same class stand before each, [n]."""
    before = np.zeros(len(labels), np.int64)
    for c in np.unique(labels):
        before[labels == c] = np.arange(np.count_nonzero(labels == c))
    return before
