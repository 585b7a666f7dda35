"""A name → inputs, labels, class names and owners: read once, then from the cache."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from pfedlora_flwr.data import cache
from pfedlora_flwr.data.images import fitted
from pfedlora_flwr.data.registry import find, takes_path
from pfedlora_flwr.data.source import Arrays, Inputs, Reading, Source
from pfedlora_flwr.errors import UserError, permissions
from pfedlora_flwr.training import kinds
from pfedlora_flwr.training.kinds import IMAGES, Kind, Shape

_AS_IT_IS = Reading()


@dataclass(frozen=True)
class Dataset:
    """All samples, official parts merged in their order.

    inputs: images uint8 [n, height, width, 1 or 3], or as numbers series [n, channels, time] or
    vectors [n, features]. mean, std: of each channel, of the images scaled to [0, 1]; None where
    they are the training samples' alone.
    owners: text or numbers that say who each sample belongs to; None where that is not known.
    resized: the images that were.
    feature_names: of vectors, in their order; None where they have none.
    notes: what its reader left out or warns of, a line each. original: of the Arrays it was read
    as. split: what may divide a client's samples (`Arrays`). digests: of each sample with its
    label; equal samples have equal ones.
    """

    name: str
    inputs: Inputs
    labels: npt.NDArray[np.int64]  # [n]
    class_names: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    owners: npt.NDArray[np.str_] | npt.NDArray[np.int64] | None = None  # [n]
    resized: int = 0
    feature_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    original: str = ""
    split: npt.NDArray[Any] | None = None  # [n]
    digests: npt.NDArray[np.uint64] | None = None  # [n]

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> Shape:
        """Of an input as a model takes it."""
        return self.kind.shape_of(self.inputs)

    @property
    def kind(self) -> Kind:
        """Of its inputs."""
        return kinds.of_inputs(self.inputs)

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """`digests`, computed where they are not kept."""
        own = self.digests
        return cache.digests(self.inputs, self.labels) if own is None else own

    @cached_property
    def input_hashes(self) -> npt.NDArray[np.uint64]:
        """The same of each sample without its label; numbers are alike in whatever type they
        stand."""
        inputs = self.inputs
        if inputs.dtype != np.uint8:
            inputs = inputs.astype(np.float64, copy=False)
        return cache.digests(inputs, np.zeros(len(inputs), np.int64))

    @cached_property
    def values(self) -> str:
        """SHA-256 of all samples, the same on all machines; empty where the name says which they
        are."""
        if find(self.name).shape:
            return ""
        if self.original:
            return hashlib.sha256(self.original.encode() + self.labels.tobytes()).hexdigest()
        return _sha256(self.hashes)

    @property
    def empty_classes(self) -> list[str]:
        """The names of the classes that no sample has."""
        counts = np.bincount(np.asarray(self.labels), minlength=self.classes)
        return [name for name, count in zip(self.class_names, counts, strict=True) if not count]


@lru_cache(maxsize=4)
def load(name: str, how: Reading = _AS_IT_IS) -> Dataset:
    """The dataset `name`, from the cache or from its files.

    Two processes that build the cache at once wait for each other. Raises UserError when the files
    are missing or broken, or not allowed here."""
    check_allowed(name, how)
    with permissions.own_choice(name):
        if not permissions.own_machine() and needs_download(name, how):
            permissions.check_download("dataset", name)
        return _found(name, how)


def _found(name: str, how: Reading) -> Dataset:
    source = find(name)
    if source.shape and how.size == source.shape[1:]:
        how = replace(how, size=None)
    if not source.kept:
        arrays = _read(source, name, how)
        return Dataset(
            name, arrays.inputs, arrays.labels, tuple(arrays.class_names), None, None, *arrays[3:]
        )
    folder = cache.folder_of(source, name, how)
    if not (folder / cache.META).exists():
        try:
            cache.made(folder.parent)
            with FileLock(f"{folder}.lock"):
                if not (folder / cache.META).exists():
                    cache.write(folder, source, _read(source, name, how))
        except OSError as error:
            raise UserError(
                f"dataset cache {folder.parent}: {error.strerror or error}; set PFEDLORA_CACHE to a"
                " writable folder"
            ) from None
    try:
        return _mapped(name, folder)
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise UserError(
            f"dataset cache {folder} is damaged ({error}); remove it; it will be created again"
        ) from None


def check_allowed(name: str, how: Reading) -> None:
    """Asks whether a run may name this dataset here, and the `data-path` that it would take. Raises
    NotAllowed."""
    source = find(name)
    text = source.text(name)
    with permissions.own_choice(name):
        if not source.kept:
            permissions.check_code("dataset", name)
        elif source.is_path(text):
            permissions.check_file("dataset", text, permissions.DATA)
        elif callable(source.path):
            permissions.check_download("dataset", name)
    if how.data_path and takes_path(name):
        permissions.check_file("data-path", how.data_path, permissions.DATA)


def needs_download(name: str, how: Reading = _AS_IT_IS) -> bool:
    """Whether `load` would first fetch the files from outside."""
    source = find(name)
    outside = (source.files and not how.data_path) or (
        callable(source.path) and not source.is_path(source.text(name))
    )
    here = (
        cache.folder_of(source, name, how) / cache.META,
        *(cache.downloads() / file for file in source.files),
    )
    return bool(outside) and not any(path.exists() for path in here)


def count_classes(name: str, how: Reading = _AS_IT_IS) -> int:
    """The dataset's number of classes, without its files where the name tells: a deployed server
    has none."""
    return find(name).classes or load(name, how).classes


def count_samples(name: str, how: Reading = _AS_IT_IS) -> int:
    """The dataset's number of samples, without its files where the name tells."""
    source = find(name)
    known = source.samples(source.text(name)) if callable(source.samples) else source.samples
    return known or len(load(name, how).labels)


def kind_and_shape(name: str, how: Reading = _AS_IT_IS) -> tuple[Kind, Shape]:
    """Of its inputs as a model takes them, without its files where the name tells: of images."""
    known = find(name).shape
    if known is None:
        dataset = load(name, how)
        return dataset.kind, dataset.shape
    return IMAGES, (known[0], *how.size) if how.size else known


def _read(source: Source, name: str, how: Reading) -> Arrays:
    arrays = source.read(source.text(name), how)
    owners = () if arrays.owners is None else map(str, np.unique(arrays.owners))
    for one in (*arrays.class_names, *owners, *(arrays.feature_names or ())):
        try:
            one.encode()
        except UnicodeError:
            raise UserError(f"dataset {name!r}: the name {one!a} is not UTF-8: rename it") from None
    names, labels = how.respelt(arrays.class_names, arrays.labels)
    arrays = arrays._replace(labels=labels, class_names=names)
    found = fitted(arrays, how.size) if how.size else arrays
    if found is arrays or source.shape:
        return found
    return found._replace(original=_sha256(cache.digests(arrays.inputs, arrays.labels)))


def _sha256(digests: npt.NDArray[np.uint64]) -> str:
    return hashlib.sha256(np.ascontiguousarray(digests, "<u8").tobytes()).hexdigest()


def _mapped(name: str, folder: Path) -> Dataset:
    """The dataset in a folder of the cache."""
    meta = json.loads((folder / cache.META).read_text())
    inputs, labels = (
        np.load(folder / f"{part}.npy", mmap_mode="r") for part in ("inputs", "labels")
    )
    owners = np.load(folder / "owners.npy") if (folder / "owners.npy").exists() else None
    mean, std = (tuple(meta[part]) if meta[part] else None for part in ("mean", "std"))
    features = tuple(meta["feature_names"]) if meta.get("feature_names") else None
    digests = np.load(folder / f"{cache.DIGESTS}.npy", mmap_mode="r")
    names, notes, resized = tuple(meta["class_names"]), tuple(meta["notes"]), meta["resized"]
    split = np.load(folder / "split.npy") if (folder / "split.npy").exists() else None
    sizes = mean, std, owners, resized, features, notes, meta["original"], split
    return Dataset(name, inputs, labels, names, *sizes, digests)
