"""What the keys of a run make of its data: the dataset, everyone's part of it, and what models take
and give."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.normalisation import Constants, of_parts
from pfedlora_flwr.data.partition import Partition, make_partition
from pfedlora_flwr.data.parts import OF_RUN, Parts
from pfedlora_flwr.data.registry import find
from pfedlora_flwr.data.remarks import remarks, shown_by_sums
from pfedlora_flwr.data.source import CLASSIFY, Reading
from pfedlora_flwr.data.split import Split
from pfedlora_flwr.errors import UserError, permissions, wrong
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.kinds import IMAGES, TEXT, read_shape

_MANY, _FEW = 100, 10
"""Labels above which a run asks whether they are classes, and below which it does not, however few
the rows."""


@dataclass(frozen=True)
class DataSetup:
    """The data of an Experiment, whose files are in `data_path` (the key of that name). Each part
    is read or made when it is asked for, once a process; all of them may raise UserError."""

    experiment: Experiment
    data_path: str = ""

    @property
    def reading(self) -> Reading:
        """How the dataset is read."""
        return Reading.of(self.experiment, self.data_path)

    @property
    def task(self) -> Task:
        """What the models take and give: as `classes`, or the number of `data.class-names`, and
        `input-shape` say, or the dataset, by its name where that tells."""
        e, how = self.experiment, self.reading
        datasets.check_allowed(e.dataset, how)  # also where nothing of it is looked at
        named = len(e.data.class_names or ())
        classes = e.classes or named or datasets.count_classes(e.dataset, how)
        kind, shape = (
            read_shape(e.input_shape) if e.input_shape else datasets.kind_and_shape(e.dataset, how)
        )
        return Task(classes, shape, kind)

    @property
    def dataset(self) -> Dataset:
        """The dataset. Raises UserError where keys say of its inputs what they are not."""
        return _dataset(self.experiment, self.data_path)

    @property
    def partition(self) -> Partition:
        """Everyone's split. Raises UserError for a partition that this dataset cannot have."""
        return _partition(self.experiment, self.data_path)

    @property
    def trained(self) -> tuple[Split, ...]:
        """The splits of all clients that can be sampled."""
        return self.partition.clients[: self.experiment.trained_clients]

    @property
    def constants(self) -> Constants:
        """Mean and standard deviation by which everyone's inputs are normalised: the dataset's, or
        those of the training parts of all clients that can be sampled."""
        return _constants(self.experiment, self.data_path)

    @property
    def data(self) -> str:
        """What `Site.data` is wherever this dataset is the same."""
        return known_by(self.partition.fingerprint, self.dataset)

    @property
    def remarks(self) -> list[str]:
        """What is to be known of the data, a line each."""
        return [*remarks(self.dataset, self.partition), *self.shown]

    @property
    def shown(self) -> list[str]:
        """What a run of sums shows of single samples, a line; empty of others, and with `dp`."""
        e = self.experiment
        if not e.adds or e.noises:
            return []
        return [shown_by_sums(self.dataset, self.partition, sums_alone=bool(e.hides_uploads))]

    @property
    def needs_download(self) -> bool:
        """Whether the dataset would first be fetched from outside."""
        return datasets.needs_download(self.experiment.dataset, self.reading)


@lru_cache(maxsize=2)
def _dataset(e: Experiment, data_path: str) -> Dataset:
    dataset = datasets.load(e.dataset, Reading.of(e, data_path))
    if e.image_size and dataset.kind != IMAGES:
        raise wrong("image-size", e.image_size, f"auto, for {e.dataset} holds {dataset.kind}")
    check_classes(e, dataset)
    kind, shape = dataset.kind, dataset.shape
    if e.input_shape and read_shape(e.input_shape) != (kind, shape):
        raise UserError(
            f"input-shape is {e.input_shape}; allowed: auto, or {kind.write(shape)}, which dataset"
            f" {e.dataset!r} has"
        )
    return dataset


def check_classes(e: Experiment, dataset: Dataset) -> None:
    """Raises UserError for labels that may be a number to predict, unless `classes` says that they
    are as many classes: they come from a column, or are numbers without names, and are many, or
    some with gaps between."""
    found, rows = dataset.classes - len(dataset.empty_classes), len(dataset.labels)
    counted = "data.label-column" in find(dataset.name).columns or all(
        name.isdigit() for name in dataset.class_names
    )
    numbers = sorted(int(n) for n in dataset.class_names if re.fullmatch(r"-?\d{1,18}", n))
    gaps = len(numbers) == dataset.classes and numbers[-1] - numbers[0] >= found
    unnamed = counted and not (e.classes or e.data.class_names)
    if unnamed and (found > _MANY or (found > _FEW and (gaps or found >= rows / 2))):
        raise UserError(
            f"dataset {dataset.name!r} has {found} different labels in {rows} {dataset.kind.unit}:"
            f" {CLASSIFY}; if they are classes, set classes={found}, else divide the target into a"
            " few classes"
        )


@lru_cache(maxsize=2)
def _partition(e: Experiment, data_path: str) -> Partition:
    dataset, known = _dataset(e, data_path), None
    if e.start_from and permissions.own_machine():  # on a node the key is no file's
        parts = Parts(Path(e.start_from) / OF_RUN)
        known = parts.known(dataset.input_hashes) if parts.file.exists() else None
    return make_partition(e, dataset, known)


@lru_cache(maxsize=2)
def _constants(e: Experiment, data_path: str) -> Constants:
    setup = DataSetup(e, data_path)
    return constants_of(setup.dataset, setup.trained, e.data.missing)


CACHES = (datasets.load, _dataset, _partition, _constants)
"""What keeps what was read of files."""


def constants_of(dataset: Dataset, splits: tuple[Split, ...], missing: str) -> Constants:
    """The dataset's mean and standard deviation, or those of the splits' training parts; of texts
    none. missing: of `data.missing`."""
    if dataset.kind == TEXT:
        return (), ()
    if dataset.mean is not None and dataset.std is not None:
        return dataset.mean, dataset.std
    return of_parts(dataset.inputs, (split.train for split in splits), missing)


def known_by(fingerprint: str, dataset: Dataset) -> str:
    """A hash of a partition's fingerprint and of the classes' order."""
    return hashlib.sha256(f"{fingerprint}{dataset.class_names}".encode()).hexdigest()[:16]
