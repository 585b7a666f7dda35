"""One client's own samples, on the device where it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfedlora_flwr.data import datasets, registry
from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.normalisation import Constants, of_parts
from pfedlora_flwr.data.partition import Indices, Partition, Split, make_partition, split_8_1_1
from pfedlora_flwr.data.source import Reading, in_words, inputs_of, parse_shape
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.files import absolute
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.device import memory_share
from pfedlora_flwr.training.loop import Samples

OWN = "own"
"""The fingerprint of data that is no part of a partition."""


@dataclass(frozen=True)
class LocalData:
    """A client's samples."""

    train: Samples
    validation: Samples
    test: Samples


@lru_cache(maxsize=2)
def shared_partition(experiment: Experiment) -> tuple[Dataset, Partition]:
    """The dataset and everyone's split, made once a process. Raises UserError where keys say of its inputs what they are not."""
    e = experiment
    dataset = datasets.load(e.dataset, Reading.of(e))
    if e.image_size and dataset.kind != "images":
        raise UserError(
            f"image-size is {e.image_size}; allowed: auto, for {e.dataset} holds {dataset.kind}"
        )
    if e.input_shape and parse_shape(e.input_shape) != dataset.shape:
        raise UserError(
            f"input-shape is {e.input_shape}; allowed: auto, or {in_words(dataset.shape)}, which dataset {e.dataset!r} has"
        )
    return dataset, make_partition(e, dataset)


@lru_cache(maxsize=2)
def shared_constants(experiment: Experiment) -> Constants:
    """Mean and standard deviation by which everyone's inputs are normalised: the dataset's, or those of all clients' training parts."""
    dataset, partition = shared_partition(experiment)
    return _constants(dataset, partition.clients)


def task_of(experiment: Experiment) -> Task:
    """What the models take and give: as `classes` and `input-shape` say, or the dataset, by its name where that tells."""
    e, how = experiment, Reading.of(experiment)
    classes = e.classes or datasets.count_classes(e.dataset, how)
    return Task(
        classes,
        parse_shape(e.input_shape) if e.input_shape else datasets.input_shape(e.dataset, how),
    )


def site_settings(node_config: Mapping[str, Any]) -> dict[str, str]:
    """What `Site.find` takes of a node-config, with absolute paths: it finds the same data from elsewhere on the node."""
    make = {"dataset": registry.located, "data-path": lambda text: str(absolute(text))}
    return {
        name: located(str(node_config[name]))
        for name, located in make.items()
        if name in node_config
    }


@dataclass(frozen=True)
class Site:
    """Where a client's data is: its part of a shared dataset, or the node's own data (`dataset` in its node-config).

    fingerprint: of the partition of the shared dataset, or `own`. task: its classes may be more than own data has.
    mean, std: of each channel or feature, by which its inputs are normalised; of images in [0, 1].
    """

    dataset: Dataset
    split: Split
    fingerprint: str
    task: Task
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def find(cls, experiment: Experiment, client: int, node_config: Mapping[str, Any]) -> Site:
        """The site of `client`. A node's `data-path` and `dataset` come before the Experiment's. Raises UserError."""
        local = experiment.replace(
            data_path=str(node_config.get("data-path", experiment.data_path))
        )
        task = task_of(local)
        if "dataset" in node_config:  # the node's own data: all of it is this client's
            dataset, split, constants = _own(
                str(node_config["dataset"]), reading_for(task, local), local.seed, client
            )
            fingerprint = OWN
        else:
            dataset, partition = shared_partition(local)
            if client >= len(partition.clients):
                raise UserError(
                    f"partition-id is {client}; allowed: 0 to {len(partition.clients) - 1}"
                )
            split, fingerprint, constants = (
                partition.clients[client],
                partition.fingerprint,
                shared_constants(local),
            )
        if dataset.classes > task.classes:
            raise UserError(
                f"dataset {dataset.name!r} has {dataset.classes} classes, the Experiment {task.classes}; set classes"
            )
        if dataset.shape != task.shape:
            told = f"dataset {dataset.name!r} holds {inputs_of(dataset)}, the Experiment says {inputs_of(task)}"
            raise UserError(f"{told}; set input-shape")
        return cls(dataset, split, fingerprint, task, *constants)

    def load(self, device: torch.device) -> LocalData:
        """The client's samples on `device`."""
        return LocalData(
            *(
                self._samples(part, device)
                for part in (self.split.train, self.split.validation, self.split.test)
            )
        )

    def _samples(self, indices: Indices, device: torch.device) -> Samples:
        labels = torch.from_numpy(np.asarray(self.dataset.labels[indices]))
        if device.type == "cuda" and _fits(self.dataset, device):
            inputs = _on_gpu(self.dataset, device)[torch.from_numpy(indices).to(device)]
        else:
            inputs = torch.from_numpy(self.dataset.inputs[indices]).to(device)
        return samples(inputs, labels.to(device), self.mean, self.std)


def samples(
    inputs: Tensor, labels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]
) -> Samples:
    """Inputs as `Dataset` has them, normalised: floats here and now; uint8 pixels in each batch, after scaling to [0, 1]."""
    device = inputs.device
    if inputs.dtype == torch.uint8:
        scale = torch.tensor([1 / (255 * s) for s in std], device=device)
        shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)
        return Samples(inputs, labels, scale, shift)
    rest = (1,) * (inputs.ndim - 2)
    middle, width = (
        torch.tensor(values, dtype=inputs.dtype, device=device).reshape(-1, *rest)
        for values in (mean, std)
    )
    return Samples((inputs - middle) / width, labels)


def reading_for(task: Task, e: Experiment) -> Reading:
    """How data from elsewhere is read for the federation's models: images are brought to what these take."""
    how = Reading.of(e)
    return (
        replace(how, size=(task.shape[1], task.shape[2]), grey=task.shape[0] == 1)
        if task.kind == "images"
        else how
    )


@lru_cache(maxsize=2)
def _own(name: str, how: Reading, seed: int, client: int) -> tuple[Dataset, Split, Constants]:
    """A node's own data, split and what normalises it, made once a process."""
    dataset = datasets.load(name, how)
    split = split_8_1_1(np.asarray(dataset.labels), np.arange(len(dataset.labels)), seed, client)
    if not len(split.test):
        raise UserError(
            f"dataset {name!r} has {len(dataset.labels)} samples, and a client needs 10"
        )
    return dataset, split, _constants(dataset, (split,))


def _constants(dataset: Dataset, splits: tuple[Split, ...]) -> Constants:
    if dataset.mean is not None and dataset.std is not None:
        return dataset.mean, dataset.std
    return of_parts(dataset.inputs, (split.train for split in splits))


_RESIDENT: dict[tuple[int, torch.device], Tensor] = {}


def _on_gpu(dataset: Dataset, device: torch.device) -> Tensor:
    """All inputs on the GPU, copied there once a process: a client's part is then gathered on the device."""
    key = id(dataset.inputs), device  # `datasets.load` keeps the few datasets of a process alive
    if key not in _RESIDENT:
        _RESIDENT[key] = torch.from_numpy(np.ascontiguousarray(dataset.inputs)).to(device)
    return _RESIDENT[key]


def _fits(dataset: Dataset, device: torch.device) -> bool:
    """Whether all of it is on the GPU already, or takes no more than a quarter of what is free and of this process's share."""
    if (id(dataset.inputs), device) in _RESIDENT:
        return True
    free, total = torch.cuda.mem_get_info(device)
    return dataset.inputs.nbytes <= min(free, total * memory_share()) // 4
