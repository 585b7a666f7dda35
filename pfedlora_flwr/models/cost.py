"""What a model computes: the operations of one image through it, counted from its modules."""

from __future__ import annotations

import statistics
from functools import lru_cache

import torch

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.models import registry
from pfedlora_flwr.training.flops import count_operations


@lru_cache(maxsize=256)
def forward_flops(model: str, classes: int) -> int:
    """2·MAC of one image through the client model `model`."""
    module = registry.build(model, classes).eval()
    with torch.no_grad(), count_operations() as operations:
        module(torch.zeros(1, *registry.IMAGE))
    return operations.forward


def sample_flops(e: Experiment, classes: int) -> float:
    """2·MAC of one image through a client's model, the mean over the clients."""
    return statistics.fmean(forward_flops(e.model_of(k), classes) for k in range(e.clients))
