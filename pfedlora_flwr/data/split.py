"""What divides a client's samples into training, validation and test: chance, groups that stay
together, time, or the data itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.source import SPLITS, Indices
from pfedlora_flwr.errors import UserError, some
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.rng import numpy_generator

PARTS = ("training", "validation", "test")


@dataclass(frozen=True)
class Split:
    """One client's samples, as indices into the dataset. Disjoint."""

    train: Indices
    validation: Indices
    test: Indices

    @property
    def parts(self) -> tuple[Indices, Indices, Indices]:
        return self.train, self.validation, self.test


Owned = Mapping[int, Indices]
"""By client, its samples."""
Splits = dict[int, Split]
"""By client, its samples in three parts."""
_NAMED = 5


def divided(e: Experiment, dataset: Dataset, owned: Owned, known: Indices | None) -> Splits:
    """By client, its samples in three parts, before any is left out.

    known: the part that each sample of the dataset has already, 0 to 2, -1 for none: it keeps it.
    Raises UserError for a client that would have an empty part."""
    by_kind = KINDS[e.split.kind]
    found = in_folds(e, dataset, owned) if e.split.folds else by_kind(e, dataset, owned, known)
    for client, split in found.items():
        if empty := [name for name, rows in zip(PARTS, split.parts, strict=True) if not len(rows)]:
            raise UserError(
                f"client {client} has {len(owned[client])} {dataset.kind.unit} and none for"
                f" {empty[0]} (split.kind={e.split.kind}, split.shares={e.split.shares.text})"
            )
    return found


def in_folds(e: Experiment, dataset: Dataset, owned: Owned) -> Splits:
    """Fold `split.fold` of each client's samples is for tests; every ninth of the others is for
    validation. All folds together test each sample once."""
    shares = (1,) * (e.split.folds or 1)
    if e.split.kind == "groups":
        fold = _of_clients(e, dataset, owned, None, shares)
        rest = {k: own[fold[k] != e.split.fold] for k, own in owned.items()}
        part = _of_clients(e, dataset, rest, None, (8, 1, 0))
        others = {k: _parted(own, part[k]) for k, own in rest.items()}
        tests = {k: own[fold[k] == e.split.fold] for k, own in owned.items()}
    else:
        labels, others, tests = np.asarray(dataset.labels), {}, {}
        for k, own in owned.items():
            ordered, place = _placed(labels, own, e.seed, k, None, shares)
            tests[k] = ordered[place == e.split.fold]
            left = ordered[place != e.split.fold]
            others[k] = stratified(labels, left, e.seed, k, None, (8, 1, 0))
    return {k: replace(split, test=tests[k]) for k, split in others.items()}


def dealt(e: Experiment, dataset: Dataset) -> Indices | None:
    """The samples that are dealt to clients where their parts are given: those of training and
    validation; None: all."""
    if e.split.kind != "given":
        return None
    return np.flatnonzero(_given(e, dataset) < 2)


def at_random(e: Experiment, dataset: Dataset, owned: Owned, known: Indices | None) -> Splits:
    """Stratified by class."""
    labels, shares = np.asarray(dataset.labels), tuple(e.split.shares)
    return {k: stratified(labels, own, e.seed, k, known, shares) for k, own in owned.items()}


def by_groups(e: Experiment, dataset: Dataset, owned: Owned, known: Indices | None) -> Splits:
    """All samples of a group have one part. A group that several clients have has its part for all
    of them."""
    part = _of_clients(e, dataset, owned, known, tuple(e.split.shares))
    return {k: _parted(own, part[k]) for k, own in owned.items()}


def _of_clients(
    e: Experiment, dataset: Dataset, owned: Owned, known: Indices | None, shares: tuple[int, ...]
) -> dict[int, Indices]:
    """By client the part of each of its samples, by these shares: that of its group."""
    _, group = np.unique(_values(e, dataset), return_inverse=True)
    holders = np.zeros(group.max() + 1, int)
    for own in owned.values():
        holders[np.unique(group[own])] += 1
    part = np.full(len(group), -1) if known is None else known.copy()
    if (holders > 1).any():
        every = np.concatenate([*owned.values()])
        whole = _of_groups(e.seed, group[every], part[every], shares, client=0)
        return {k: whole[group[own]] for k, own in owned.items()}
    return {
        k: _of_groups(e.seed, group[own], part[own], shares, client=k)[group[own]]
        for k, own in owned.items()
    }


def by_time(e: Experiment, dataset: Dataset, owned: Owned, known: Indices | None) -> Splits:
    """The earliest samples of each client are for training and the latest for tests; of data that
    have grown the new ones alone are divided so. Equal times stay in the order of the data."""
    times, shares = _values(e, dataset), np.cumsum(e.split.shares)
    if times.dtype.kind == "U":
        try:
            times = times.astype("datetime64[us]").astype(np.int64)
        except ValueError:
            raise UserError(
                f"split.kind is time, and column {e.split.column!r} of {dataset.name} holds text;"
                " expected numbers, or times such as 2026-01-31 or 2026-01-31 08:30:00"
            ) from None
    found = {}
    for k, own in owned.items():
        rows = own[np.argsort(times[own], kind="stable")]
        part = np.full(len(rows), -1) if known is None else known[rows]
        new = np.flatnonzero(part < 0)
        ends = np.round(len(new) * shares[:-1] / shares[-1]).astype(int)
        part[new] = np.searchsorted(ends, np.arange(len(new)), "right")
        found[k] = _parted(rows, part)
    return found


def as_given(e: Experiment, dataset: Dataset, owned: Owned, known: Indices | None) -> Splits:
    """As the data says. Clients that were dealt training samples alone have of each class the same
    share of those for tests. Where nothing is for validation, every ninth sample of a class is
    taken from training."""
    part, labels = _given(e, dataset), np.asarray(dataset.labels)
    train, test = (dataset.input_hashes[part == of] for of in (0, 2))
    if len(same := np.intersect1d(train, test)):
        raise UserError(
            f"{dataset.name}: equal {dataset.kind.unit} are in the training part and in the test"
            f" part ({len(same)}): remove them from one"
        )
    held, rest = np.concatenate([*owned.values()]), np.flatnonzero(part == 2)
    alone = dict.fromkeys(owned, rest[:0])  # what every client has itself
    tests = alone if (part[held] == 2).any() else _shared_out(e, labels, rest, owned)
    found = {}
    for k, own in owned.items():
        split = _parted(own, part[own])
        if not len(split.validation):
            drawn = stratified(labels, split.train, e.seed, k, None, (8, 1, 0))
            split = replace(split, train=drawn.train, validation=drawn.validation)
        found[k] = replace(split, test=np.concatenate([split.test, tests[k]]))
    return found


KINDS: dict[str, Callable[[Experiment, Dataset, Owned, Indices | None], Splits]] = {
    "random": at_random,
    "groups": by_groups,
    "time": by_time,
    "given": as_given,
}
"""`split.kind` → what divides, in the order of help."""
SAID = {
    "random": "",
    "groups": "groups of {column} stay together",
    "time": "the last ones by {column} are for tests",
    "given": "as the data gives them",
}
"""What a report says of the parts."""


def stratified(
    labels: Indices,
    own: Indices,
    seed: int,
    client: int,
    known: Indices | None = None,
    shares: tuple[int, ...] = (8, 1, 1),
) -> Split:
    """Ordered by class and shuffled within each, of each ten the ninth is validation and the tenth
    test, or as the shares say.

    known: the part that each sample has already, 0 to 2, -1 for none; those of none are drawn as
    the next ones after as many."""
    return _parted(*_placed(labels, own, seed, client, known, shares))


def _placed(
    labels: Indices,
    own: Indices,
    seed: int,
    client: int,
    known: Indices | None,
    shares: tuple[int, ...],
) -> tuple[Indices, Indices]:
    """A client's samples in that order, and the part of each."""
    shuffled = numpy_generator(seed, "partition/split", client).permutation(np.sort(own))
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    part = np.full(len(ordered), -1) if known is None else known[ordered]
    new = part < 0
    ends = np.cumsum(shares)
    place = (np.count_nonzero(~new) + np.arange(np.count_nonzero(new))) % ends[-1]
    part[new] = np.searchsorted(ends[:-1], place, "right")
    return ordered, part


def _parted(rows: Indices, part: Indices) -> Split:
    return Split(*(rows[part == of] for of in range(3)))


def _of_groups(
    seed: int, group: Indices, known: Indices, shares: tuple[int, ...], client: int
) -> Indices:
    """The part of each group by its number, of those of these samples: in random order each goes
    where most is lacking. A group with a sample that has a part has that."""
    wanted = np.array(shares) / sum(shares) * len(group)
    found, there = np.full(group.max() + 1, -1), np.unique(group)
    has = known >= 0
    found[group[has]] = known[has]
    for part in range(len(shares)):
        wanted[part] -= np.isin(group, np.flatnonzero(found == part)).sum()
    sizes = np.bincount(group)
    draw = numpy_generator(seed, "split/groups", client).permutation(there)
    # each part has a group, where there are enough
    free = reversed(range(len(shares)))
    empty = [part for part in free if not (found == part).any() and shares[part]]
    for one in draw[found[draw] < 0]:
        part = empty.pop(0) if empty else int(wanted.argmax())
        found[one] = part
        wanted[part] -= sizes[one]
    return found


def _shared_out(e: Experiment, labels: Indices, rest: Indices, owned: Owned) -> dict[int, Indices]:
    """Samples of the test part that nobody has, by client: of each class by the clients' shares of
    its other samples."""
    found: dict[int, list[Indices]] = {k: [] for k in owned}
    held = np.stack(
        [np.bincount(labels[own], minlength=labels.max() + 1) for own in owned.values()]
    )
    for c in np.unique(labels[rest]):
        pool = numpy_generator(e.seed, "split/given", int(c)).permutation(rest[labels[rest] == c])
        total = held[:, c].sum()
        ends = np.round(np.cumsum(held[:, c]) / max(1, total) * len(pool)).astype(int)[:-1]
        for k, own in zip(owned, np.split(pool, ends), strict=True):
            found[k].append(own if total else own[:0])
    return {k: np.concatenate(parts) for k, parts in found.items()}


def _values(e: Experiment, dataset: Dataset) -> npt.NDArray[np.generic]:
    if dataset.split is None:
        raise UserError(f"{dataset.name} has no column {e.split.column!r}; mend split.column")
    return dataset.split


def _given(e: Experiment, dataset: Dataset) -> Indices:
    """The part of each sample, as the data gives it: 0 training, 1 validation, 2 test."""
    if dataset.split is None:
        raise UserError(
            f"split.kind is given, and {dataset.name} has no parts: name their column by"
            " split.column"
        )
    names, code = np.unique(dataset.split, return_inverse=True)
    called = SPLITS | {"0": 0, "1": 1, "2": 2}
    part = [called.get(str(name).casefold(), -1) for name in names]
    if unknown := [str(n) for n, of in zip(names, part, strict=True) if of < 0]:
        raise UserError(
            f"{dataset.name}: parts are called {some(unknown, _NAMED)}; allowed: train, validation,"
            " test, or 0, 1, 2"
        )
    if {0, 2} - {*part}:
        raise UserError(
            f"{dataset.name}: its parts are {some([str(n) for n in names], _NAMED)};"
            " split.kind=given needs train and test"
        )
    return np.array(part)[code]
