"""The operations of one input through a model, counted from its modules."""

from __future__ import annotations

import statistics
from functools import lru_cache

import torch

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.models import registry
from pfedlora_flwr.models.named import random_weights
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.flops import count_operations


@lru_cache(maxsize=256)
def forward_flops(model: str, task: Task) -> int:
    """2·MAC of one input through the client model `model`."""
    with random_weights(base=False):
        module = registry.build(model, task).eval()
    with torch.no_grad(), count_operations() as operations:
        module(task.blank(1))
    return operations.forward


def sample_flops(e: Experiment, task: Task) -> float:
    """2·MAC of one input through a client's model, the mean over the clients that train."""
    names = registry.models_of(e, task)
    gone = e.gone(1)
    own = (registry.of_client(k, names) for k in range(e.trained_clients) if k not in gone)
    return statistics.fmean(forward_flops(name, task) for name in own)
