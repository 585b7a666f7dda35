"""The Flower ClientApp."""

from __future__ import annotations

from functools import lru_cache

import torch
from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.client import PersonalisedClient
from pfedlora_flwr.federation.guard import Guard
from pfedlora_flwr.federation.model_cache import MODELS
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.training.device import keep_freed_memory, memory_share


@lru_cache(maxsize=2)
def _experiment(items: tuple[tuple[str, Scalar], ...]) -> Experiment:
    return from_flat(dict(items))


def experiment_of(context: Context) -> Experiment:
    """The run's Experiment, as its configuration says."""
    return _experiment(tuple(sorted(context.run_config.items())))


@lru_cache(maxsize=2)
def prepare_process(device: torch.device) -> None:
    """What holds for a whole process that trains on `device`; the results depend on it."""
    if device.type == "cpu":
        torch.set_num_threads(1)
        keep_freed_memory()
    else:
        torch.set_float32_matmul_precision(
            "high"
        )  # TF32 products, as cuDNN's convolutions have by default
        share = memory_share()
        if share < 1:
            torch.cuda.set_per_process_memory_fraction(share)
        MODELS.limit = int(torch.cuda.get_device_properties(device).total_memory * share) // 4


def client_fn(context: Context) -> Client:
    """This node's client, as its node-config and the run's configuration say."""
    client = PersonalisedClient(experiment_of(context), context.node_config)
    prepare_process(client.device)
    return client.to_client()


app = ClientApp(client_fn=client_fn, mods=[Guard(experiment_of)])
