"""One client's own samples, as float tensors on the device where it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfedlora_flwr.config import Experiment
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.data.partition import Indices, Partition, Split, make_partition, split_8_1_1
from pfedlora_flwr.keys import UserError
from pfedlora_flwr.training.loop import Samples


@dataclass(frozen=True)
class LocalData:
    """A client's samples; `fingerprint` names the partition they come from, `classes` the dataset's class count."""

    train: Samples
    validation: Samples
    test: Samples


@lru_cache(maxsize=2)
def shared_partition(experiment: Experiment) -> tuple[Dataset, Partition]:
    """The dataset and everyone's split, made once a process."""
    dataset = datasets.load(experiment.dataset, experiment.data_path)
    return dataset, make_partition(experiment, dataset)


@dataclass(frozen=True)
class Site:
    """Where a client's data is: its part of a shared dataset, or the node's own data (`dataset` in its node-config)."""

    dataset: Dataset
    split: Split
    fingerprint: str

    @classmethod
    def find(cls, experiment: Experiment, client: int, node_config: Mapping[str, Any]) -> Site:
        """The site of `client`. A node's `data-path` and `dataset` come before the Experiment's. Raises UserError."""
        local = experiment.replace(data_path=str(node_config.get("data-path", experiment.data_path)))
        if "dataset" in node_config:  # the node's own data: all of it is this client's
            dataset = datasets.load(str(node_config["dataset"]), local.data_path)
            split = split_8_1_1(np.asarray(dataset.labels), np.arange(len(dataset.labels)), local.seed, client)
            if not len(split.test):
                raise UserError(f"dataset {node_config['dataset']!r} has {len(dataset.labels)} samples, and a client needs 10")
            return cls(dataset, split, "own")
        dataset, partition = shared_partition(local)
        if client >= len(partition.clients):
            raise UserError(f"partition-id is {client}; allowed: 0 to {len(partition.clients) - 1}")
        return cls(dataset, partition.clients[client], partition.fingerprint)

    def load(self, device: torch.device) -> LocalData:
        """The client's samples on `device`."""
        return LocalData(*(self._samples(part, device) for part in (self.split.train, self.split.validation, self.split.test)))

    def _samples(self, indices: Indices, device: torch.device) -> Samples:
        pixels = torch.from_numpy(self.dataset.images[indices])
        labels = torch.from_numpy(np.asarray(self.dataset.labels[indices]))
        return samples(pixels.to(device), labels.to(device), self.dataset.mean, self.dataset.std)


def samples(pixels: Tensor, labels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Samples:
    """uint8 [n, 32, 32, 3] pixels as inputs scaled to [0, 1] and normalised per channel."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=pixels.device)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=pixels.device)
    return Samples(pixels, labels, scale, shift)
