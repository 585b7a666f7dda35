"""Partitions: sizes, classes, disjointness, and the same ones everywhere."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.data.datasets import Dataset, load
from pfedlora_flwr.data.partition import Partition, few, make_partition
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.data.split import stratified


def fake(classes: int, each: int) -> Dataset:
    """A dataset of which only the labels matter."""
    labels = np.arange(classes * each, dtype=np.int64) % classes
    return Dataset(
        "npz:fake",
        np.zeros((len(labels), 0, 0, 3), np.uint8),
        labels,
        tuple(map(str, range(classes))),
    )


def check_sound(partition: Partition, labels: np.ndarray) -> None:
    everything = np.concatenate(
        [part for s in partition.clients for part in (s.train, s.validation, s.test)]
    )
    assert len(np.unique(everything)) == len(everything), "a sample belongs to two parts"
    assert everything.min() >= 0
    assert everything.max() < len(labels)
    assert all(len(s.validation) and len(s.test) for s in partition.clients)


@pytest.mark.parametrize("shape", [(30, 2), (30, 4, 4, 3)])
def test_other_values_are_other_data(shape: tuple[int, ...]) -> None:
    e = from_flat({"clients": 2, "partition.kind": "iid"})
    values = np.arange(np.prod(shape)).reshape(shape) % 200
    values = values.astype(np.uint8 if len(shape) == 4 else float)
    sets = [replace(fake(2, 15), inputs=inputs) for inputs in (values, values.copy(), values + 1)]
    one, same, other = (make_partition(e, dataset).fingerprint for dataset in sets)
    assert one == same
    assert one != other


def test_data_is_what_its_files_hold_however_they_are_decoded() -> None:
    e, data = from_flat({"clients": 2, "partition.kind": "iid"}), fake(2, 15)
    found = [
        make_partition(e, replace(data, **changed)).fingerprint
        for changed in (
            {"original": "files"},
            {"original": "files", "inputs": np.ones((30, 4, 4, 3), np.uint8)},
            {"original": "other files"},
            {"original": "files", "labels": 1 - data.labels},
        )
    ]
    assert found[0] == found[1]
    assert len({*found}) == 3
    assert load("digits").values == ""  # the name says which


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "train", "rest"), [(10, 4800, 600), (50, 960, 120), (100, 480, 60)]
)
def test_pathological_cifar10_has_the_papers_sizes(
    cifar10: str, clients: int, train: int, rest: int
) -> None:
    dataset = load("cifar10", Reading(data_path=cifar10))
    partition = make_partition(from_flat({"dataset": "cifar10", "clients": clients}), dataset)
    check_sound(partition, dataset.labels)
    sizes = np.array([[len(s.train), len(s.validation), len(s.test)] for s in partition.clients])
    assert np.allclose(sizes.mean(0), [train, rest, rest], rtol=0.01)
    for split in partition.clients:
        for part in (split.train, split.validation, split.test):
            assert len(np.unique(dataset.labels[part])) == 2


@pytest.mark.slow
@pytest.mark.parametrize("clients", [10, 50, 100])
@pytest.mark.parametrize("per_client", [10, 30, 50, 70, 90, 100])
def test_pathological_deals_every_share_of_100_classes(clients: int, per_client: int) -> None:
    dataset = fake(100, 600)
    keys = {"clients": clients, "partition.classes-per-client": per_client, "dataset": "cifar100"}
    partition = make_partition(from_flat(keys), dataset)
    check_sound(partition, dataset.labels)
    assert all(len(np.unique(dataset.labels[s.train])) == per_client for s in partition.clients)


def test_shares_of_a_class_are_the_normalised_draws() -> None:
    """Two clients of one class each: sizes are ⌊n p⌋ with p from U(0.4, 0.6), so between 40/100 and
    60/100 of the class."""
    partition = make_partition(
        from_flat({"clients": 20, "partition.classes-per-client": 1}), fake(10, 1000)
    )
    sizes = [len(s.train) + len(s.validation) + len(s.test) for s in partition.clients]
    assert all(400 <= size <= 600 for size in sizes)
    assert len(set(sizes)) > 5


@pytest.mark.parametrize(
    "keys", [{"partition.kind": "dirichlet", "partition.alpha": 0.5}, {"partition.kind": "iid"}]
)
def test_the_other_partitions_are_sound(keys: dict[str, object]) -> None:
    dataset = fake(10, 300)
    partition = make_partition(from_flat({"clients": 20, **keys}), dataset)
    check_sound(partition, dataset.labels)


def test_8_1_1_by_hand() -> None:
    """20 samples of class 0 and 10 of class 1, ordered by class: places 8 and 18 and 28 are
    validation, 9, 19 and 29 test."""
    labels = np.array([0] * 20 + [1] * 10)
    split = stratified(labels, np.arange(30), seed=0, client=0)
    assert sorted(labels[split.train]) == [0] * 16 + [1] * 8
    assert sorted(labels[split.validation]) == [0, 0, 1]
    assert sorted(labels[split.test]) == [0, 0, 1]
    assert sorted([*split.train, *split.validation, *split.test]) == list(range(30))
    assert list(split.train[:16]) != sorted(split.train[:16]), "not shuffled within the class"


def test_few_training_samples_come_of_a_clients_classes_in_turn() -> None:
    """Classes 0, 1 and 2 with 5, 1 and 3 samples: 7 of them are 3, 1 and 3 where the turn begins
    with 0, else two of another as well."""
    labels = np.array([0] * 5 + [1] + [2] * 3)
    train, held = np.arange(9), [5, 1, 3]
    for seed in range(5):
        chosen = {n: few(labels, train, n, seed, client=4) for n in range(2, 10)}
        for n, own in chosen.items():
            assert len(own) == n
            assert list(own) == sorted(own), "they do not keep their order"
            counts = np.bincount(labels[own], minlength=3)
            open_ = [c for c in range(3) if counts[c] < held[c]]
            assert not open_ or counts.max() - min(counts[open_]) <= 1, "a class had no turn"
            assert n == 9 or {*own} < {*chosen[n + 1]}, "fewer are not some of more"
        assert all(
            [*own[labels[own] == c]] == [*train[labels == c]][: np.count_nonzero(labels[own] == c)]
            for own in chosen.values()
            for c in range(3)
        )
    assert len({labels[few(labels, train, 1, 0, k)[0]] for k in range(20)}) == 3, "one class first"


@pytest.mark.parametrize("kind", ["pathological", "dirichlet", "iid"])
def test_few_training_samples_leave_validation_and_test_as_they_are(kind: str) -> None:
    dataset, keys = fake(10, 300), {"clients": 10, "partition.kind": kind}
    whole, cut = (
        make_partition(from_flat(keys | more), dataset)
        for more in ({}, {"partition.samples-per-client": 20})
    )
    for all_, some_ in zip(whole.clients, cut.clients, strict=True):
        assert np.array_equal(all_.validation, some_.validation)
        assert np.array_equal(all_.test, some_.test)
        assert len(some_.train) == min(20, len(all_.train))
        assert {*some_.train} <= {*all_.train}
    assert whole.fingerprint != cut.fingerprint
    many = make_partition(from_flat(keys | {"partition.samples-per-client": 3000}), dataset)
    assert many.fingerprint == whole.fingerprint


@pytest.mark.slow
def test_the_same_seed_gives_the_same_partition_in_another_process() -> None:
    code = (
        "from pfedlora_flwr.config import from_flat; from pfedlora_flwr.data.datasets import load;"
        "from pfedlora_flwr.data.partition import make_partition;"
        "print(make_partition(from_flat({'seed': 3}), load('digits')).fingerprint)"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    digits = load("digits")
    assert make_partition(from_flat({"seed": 3}), digits).fingerprint == other
    assert make_partition(from_flat({"seed": 4}), digits).fingerprint != other


def test_a_share_of_a_clients_rows_is_some_of_them() -> None:
    digits = load("digits")
    whole = make_partition(from_flat({}), digits).clients
    half = make_partition(from_flat({"partition.share": 0.5}), digits).clients
    for a, b in zip(whole, half, strict=True):
        assert len(b.train) == -(-len(a.train) // 2)
        assert set(b.train) < set(a.train)
        assert np.array_equal(a.test, b.test)


def test_any_client_can_take_the_last_number_with_the_rows_that_it_has() -> None:
    digits = load("digits")
    before = make_partition(from_flat({}), digits).clients
    after = make_partition(from_flat({"partition.last": 3}), digits).clients
    for old, new in zip((*range(3), *range(4, 10), 3), after, strict=True):
        for part in ("train", "validation", "test"):
            assert np.array_equal(getattr(new, part), getattr(before[old], part))
