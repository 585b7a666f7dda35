"""The Flower ClientApp."""

from __future__ import annotations

from functools import lru_cache

from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.client import PersonalisedClient
from pfedlora_flwr.keys import Scalar


@lru_cache(maxsize=2)
def _experiment(items: tuple[tuple[str, Scalar], ...]) -> Experiment:
    return from_flat(dict(items))


def client_fn(context: Context) -> Client:
    """This node's client, as its node-config and the run's configuration say."""
    experiment = _experiment(tuple(sorted(context.run_config.items())))
    return PersonalisedClient(experiment, context.node_config).to_client()


app = ClientApp(client_fn=client_fn)
