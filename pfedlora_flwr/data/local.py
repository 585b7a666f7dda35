"""One client's own samples, on the device where it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfedlora_flwr.data import datasets, registry
from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.partition import Indices, Partition, Split, make_partition, split_8_1_1
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.files import absolute
from pfedlora_flwr.models.task import Task
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
    """The dataset and everyone's split, made once a process."""
    dataset = datasets.load(experiment.dataset, experiment.data_path)
    return dataset, make_partition(experiment, dataset)


def task_of(experiment: Experiment) -> Task:
    """What the models take and give: C is the Experiment's `classes`, or its dataset's, whose files are not needed where the name tells."""
    return Task(experiment.classes or datasets.count_classes(experiment.dataset, experiment.data_path))


def site_settings(node_config: Mapping[str, Any]) -> dict[str, str]:
    """What `Site.find` takes of a node-config, with absolute paths: it finds the same data from elsewhere on the node."""
    make = {"dataset": registry.located, "data-path": lambda text: str(absolute(text))}
    return {name: located(str(node_config[name])) for name, located in make.items() if name in node_config}


@dataclass(frozen=True)
class Site:
    """Where a client's data is: its part of a shared dataset, or the node's own data (`dataset` in its node-config).

    fingerprint: of the partition of the shared dataset, or `own`. task: its classes may be more than own data has.
    """

    dataset: Dataset
    split: Split
    fingerprint: str
    task: Task

    @classmethod
    def find(cls, experiment: Experiment, client: int, node_config: Mapping[str, Any]) -> Site:
        """The site of `client`. A node's `data-path` and `dataset` come before the Experiment's. Raises UserError."""
        local = experiment.replace(data_path=str(node_config.get("data-path", experiment.data_path)))
        task = task_of(local)
        if "dataset" in node_config:  # the node's own data: all of it is this client's
            dataset = datasets.load(str(node_config["dataset"]), local.data_path)
            split = split_8_1_1(np.asarray(dataset.labels), np.arange(len(dataset.labels)), local.seed, client)
            if not len(split.test):
                raise UserError(f"dataset {node_config['dataset']!r} has {len(dataset.labels)} samples, and a client needs 10")
            fingerprint = OWN
        else:
            dataset, partition = shared_partition(local)
            if client >= len(partition.clients):
                raise UserError(f"partition-id is {client}; allowed: 0 to {len(partition.clients) - 1}")
            split, fingerprint = partition.clients[client], partition.fingerprint
        if dataset.classes > task.classes:
            raise UserError(f"dataset {dataset.name!r} has {dataset.classes} classes, the Experiment {task.classes}; set classes")
        return cls(dataset, split, fingerprint, task)

    def load(self, device: torch.device) -> LocalData:
        """The client's samples on `device`."""
        return LocalData(*(self._samples(part, device) for part in (self.split.train, self.split.validation, self.split.test)))

    def _samples(self, indices: Indices, device: torch.device) -> Samples:
        labels = torch.from_numpy(np.asarray(self.dataset.labels[indices]))
        if device.type == "cuda":
            pixels = _on_gpu(self.dataset, device)[torch.from_numpy(indices).to(device)]
        else:
            pixels = torch.from_numpy(self.dataset.images[indices])
        return samples(pixels, labels.to(device), self.dataset.mean, self.dataset.std)


_RESIDENT: dict[tuple[int, torch.device], Tensor] = {}


def _on_gpu(dataset: Dataset, device: torch.device) -> Tensor:
    """All pixels on the GPU, copied there once a process: a client's part is then gathered on the device."""
    key = id(dataset.images), device  # `datasets.load` keeps the few datasets of a process alive
    if key not in _RESIDENT:
        _RESIDENT[key] = torch.from_numpy(np.ascontiguousarray(dataset.images)).to(device)
    return _RESIDENT[key]


def samples(pixels: Tensor, labels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Samples:
    """uint8 [n, 32, 32, 3] pixels as inputs scaled to [0, 1] and normalised per channel."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=pixels.device)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=pixels.device)
    return Samples(pixels, labels, scale, shift)
