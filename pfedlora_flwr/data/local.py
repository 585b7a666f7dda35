"""One client's own samples, on the device where it trains."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from os.path import abspath, expanduser
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfedlora_flwr.data import datasets, registry
from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.normalisation import Constants
from pfedlora_flwr.data.partition import SMALLEST, Indices, Partition, trimmed
from pfedlora_flwr.data.parts import Parts
from pfedlora_flwr.data.remarks import remarks
from pfedlora_flwr.data.setup import CACHES, DataSetup, check_classes, constants_of, known_by
from pfedlora_flwr.data.source import Reading, spelling_of
from pfedlora_flwr.data.split import Split, divided
from pfedlora_flwr.data.tokens import tokens
from pfedlora_flwr.errors import UserError, permissions, wrong
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.files import absolute
from pfedlora_flwr.models import named
from pfedlora_flwr.models import registry as models
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import numpy_generator
from pfedlora_flwr.training.device import memory_share
from pfedlora_flwr.training.kinds import IMAGES, TEXT
from pfedlora_flwr.training.loop import Samples

logger = logging.getLogger(__name__)

_FILES = "data-path", "class-map"
OWN = "own"
"""The fingerprint of data that is no part of a partition."""
SAME_DATA = (
    "give all the same files; a function of yours must return the same at every call: draw from a"
    " fixed seed, and sort what comes from a set or a folder"
)
"""What is to be done where processes of a run have different data."""


@dataclass(frozen=True)
class LocalData:
    """A client's samples."""

    train: Samples
    validation: Samples
    test: Samples


def site_settings(node_config: Mapping[str, Any]) -> dict[str, str]:
    """What `Site.find` takes of a node-config, with absolute paths: it finds the same data from
    elsewhere on the node."""
    make = {"dataset": registry.located} | dict.fromkeys(_FILES, lambda text: str(absolute(text)))
    return {
        name: located(str(node_config[name]))
        for name, located in make.items()
        if name in node_config
    }


def without_own_folders(line: str, node_config: Mapping[str, Any]) -> str:
    """The line for people who have not this node: of the paths to the site's own files, as its
    settings name them, the last name alone."""
    named = "data-path", "state-path", permissions.ANCHORS
    settings = [node_config[name] for name in named if name in node_config]
    if "dataset" in node_config:
        settings.append(registry.path_in(str(node_config["dataset"])))
    paths = {Path(way(str(text))) for text in settings for way in (str, abspath, expanduser)}
    known = {str(folder) for path in paths for folder in (path, *path.parents)}
    for path in sorted(known, key=len, reverse=True):
        line = line.replace(path, Path(path).name or path)
    return line


def more_classes(there: int, of_run: int) -> str:
    """Of data with more classes than the run has, what is wrong and what to do."""
    return (
        f"has {there} classes, the run {of_run}: restore its classes, or begin a new run with"
        f" classes={there}"
    )


@dataclass(frozen=True)
class Site:
    """Where a client's data is: its part of a shared dataset, or the node's own data (`dataset` in
    its node-config).

    fingerprint: of the partition of the shared dataset, or `own`. task: its classes may be more
    than own data has. mean, std: of each channel or feature, by which its inputs are normalised; of
    images in [0, 1]. model: the name of the client's, whose tokeniser reads texts."""

    dataset: Dataset
    split: Split
    fingerprint: str
    task: Task
    mean: tuple[float, ...]
    std: tuple[float, ...]
    model: ModelSpec

    @classmethod
    def find(cls, experiment: Experiment, client: int, node_config: Mapping[str, Any]) -> Site:
        """The site of `client`. A node's own `dataset` comes before the Experiment's, and
        `data-path` says where its files are. Raises UserError."""
        setup = DataSetup(experiment, str(node_config.get("data-path", "")))
        task = setup.task
        names = models.models_of(experiment, task)
        model = models.of_client(client, names)
        if not permissions.own_machine():
            # a node that has no number yet may get any of the models
            for name in names if client < 0 else (model,):
                models.check_allowed(name)
        if "dataset" in node_config:  # the node's own data: all of it is this client's
            how = reading_for(task, setup)
            if "class-map" in node_config:
                how = replace(how, spelling=spelling_of(str(node_config["class-map"])))
            own_name, kept = (str(node_config.get(key, "")) for key in ("dataset", "state-path"))
            dataset, split, constants = _own(own_name, how, experiment, client, kept)
            fingerprint = OWN
        else:
            dataset, partition = setup.dataset, setup.partition
            if client >= len(partition.clients):
                raise wrong("partition-id", client, f"0 to {len(partition.clients) - 1}")
            split = partition.clients[client]
            fingerprint = partition.fingerprint
            constants = setup.constants
        if dataset.classes > task.classes:
            told = more_classes(dataset.classes, task.classes)
            raise UserError(f"dataset {dataset.name!r} {told}")
        if (dataset.kind, dataset.shape) != (task.kind, task.shape):
            told = (
                f"dataset {dataset.name!r} holds {dataset.kind.of(dataset.shape)}, the Experiment"
                f" says {task}"
            )
            raise UserError(told if experiment.input_shape else f"{told}; set input-shape")
        own = models_own(experiment, task, client)
        return cls(dataset, split, fingerprint, task, *(own or constants), model)

    @property
    def data(self) -> str:
        """What must be the same in every process of a run: a hash of the partition's fingerprint
        and of the classes' order; empty for data that is no part of a partition."""
        return "" if self.fingerprint == OWN else known_by(self.fingerprint, self.dataset)

    def check_data(self, expected: str) -> None:
        """Raises UserError if that is not what the run's other processes have."""
        if self.data and expected and self.data != expected:
            raise UserError(
                f"dataset {registry.without_path(self.dataset.name)!r} is not the same in this"
                " process as in the run's others (samples, labels, their division or the order of"
                f" classes): {SAME_DATA}"
            )

    @property
    def own_data(self) -> str:
        """What data that is no part of a partition is known by: a hash of its samples in their
        order and of its names; empty for a part of one."""
        if self.fingerprint != OWN:
            return ""
        names = f"{self.dataset.class_names}{self.dataset.feature_names}".encode()
        return hashlib.sha256(names + self.dataset.hashes.tobytes()).hexdigest()

    def load(self, device: torch.device) -> LocalData:
        """The client's samples on `device`."""
        return LocalData(*(self._samples(part, device) for part in self.split.parts))

    def pooled(self, setup: DataSetup, round: int, device: torch.device) -> Samples:
        """Of the training parts of all clients as many rows as a round's clients have together on
        average, drawn anew for each round."""
        e, clients = setup.experiment, setup.trained
        rows = np.concatenate([split.train for split in clients])
        count = max(1, len(rows) * e.sampled_in(round) // len(clients))
        drawn = numpy_generator(e.seed, "pooled", round=round).permutation(len(rows))[:count]
        return self._samples(rows[np.sort(drawn)], device)

    def _samples(self, indices: Indices, device: torch.device) -> Samples:
        labels = torch.from_numpy(np.asarray(self.dataset.labels[indices]))
        if self.dataset.kind == TEXT:
            inputs = torch.from_numpy(tokens(self.dataset, self.model.name)[indices]).to(device)
        elif device.type == "cuda" and _fits(self.dataset, device):
            inputs = _on_gpu(self.dataset, device)[torch.from_numpy(indices).to(device)]
        else:
            inputs = torch.from_numpy(self.dataset.inputs[indices]).to(device)
        return self.dataset.kind.samples(inputs, labels.to(device), self.mean, self.std)


def models_own(e: Experiment, task: Task, client: int) -> Constants | None:
    """Mean and deviation that the client's model was made with, where its inputs are to have them;
    None: they have the federation's. Raises UserError."""
    names = models.models_of(e, task)
    name = names[client % len(names)]
    if e.normalise == "federation" or (e.normalise == "auto" and {*e.train} == {"all"}):
        return None
    made = named.made_with(name.name)
    if made is None and e.normalise == "model":
        raise UserError(
            f"normalise is model, and model {name!r} has no weights of which the library says how"
            " their inputs were normalised; allowed: auto, federation"
        )
    if made is None or (e.normalise == "auto" and name.train == "all"):
        return None
    # a library fits weights to grey images by adding up their channels
    grey = task.shape[0] == 1
    return ((fmean(made.mean),), (fmean(made.std),)) if grey else (made.mean, made.std)


def reading_for(task: Task, setup: DataSetup) -> Reading:
    """How data from elsewhere is read for the federation's models: images are brought to what these
    take."""
    how = setup.reading
    if task.kind == IMAGES:
        return replace(how, size=(task.shape[1], task.shape[2]), grey=task.shape[0] == 1)
    return how


def forget() -> None:
    """What was read of files is read anew: they may have changed."""
    for kept in (*CACHES, _own):
        kept.cache_clear()


@lru_cache(maxsize=2)
def _own(
    name: str, how: Reading, e: Experiment, client: int, state_path: str
) -> tuple[Dataset, Split, Constants]:
    """A node's own data, split and what normalises it, made once a process. In its `state-path` a
    row has its part for life; a node that has no number yet draws for a look alone."""
    dataset = datasets.load(name, how)
    check_classes(e, dataset)
    labels = np.asarray(dataset.labels)
    if len(labels) < SMALLEST:
        told = f"dataset {name!r} has {len(labels)} samples"
        raise UserError(f"{told}, and a client needs {SMALLEST}")
    kept = bool(state_path) and client >= 0 and not e.split.folds
    parts = Parts.of(Path(state_path).expanduser(), e.seed) if kept else None
    known = parts.known(dataset.input_hashes) if parts else None
    try:
        whole = divided(e, dataset, {client: np.arange(len(labels))}, known)[client]
    except UserError as error:
        raise UserError(f"dataset {name!r}: {error}") from None
    split = trimmed(e, labels, whole, client)
    if parts:
        parts.keep(dataset.input_hashes, whole)
    for told in remarks(dataset, Partition((split,))):
        shown = name if permissions.own_machine() else registry.without_path(name)
        logger.warning("%s: %s", shown, told)
    return dataset, split, constants_of(dataset, (split,), e.data.missing)


_RESIDENT: dict[tuple[int, torch.device], tuple[Any, Tensor]] = {}
"""By the inputs' id, the inputs themselves, so that no others get it, and their copy."""
_MOST_RESIDENT = 4


def _on_gpu(dataset: Dataset, device: torch.device) -> Tensor:
    """All inputs on the GPU, copied there once while they are among the last few of a process: a
    client's part is then gathered on the device."""
    key = id(dataset.inputs), device
    if key not in _RESIDENT:
        if len(_RESIDENT) == _MOST_RESIDENT:
            del _RESIDENT[next(iter(_RESIDENT))]
        with warnings.catch_warnings():  # that the inputs are read alone: so is their copy
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            copied = torch.from_numpy(np.ascontiguousarray(dataset.inputs)).to(device)
        _RESIDENT[key] = dataset.inputs, copied
    return _RESIDENT[key][1]


def _fits(dataset: Dataset, device: torch.device) -> bool:
    """Whether all of it is on the GPU already, or takes no more than a quarter of what is free and
    of this process's share."""
    if (id(dataset.inputs), device) in _RESIDENT:
        return True
    free, total = torch.cuda.mem_get_info(device)
    return dataset.inputs.nbytes <= min(free, total * memory_share()) // 4
