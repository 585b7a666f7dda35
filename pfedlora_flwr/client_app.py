"""The Flower ClientApp. Importing it imports no PyTorch: on a node with a warm worker the process
that Flower starts for a message does without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.federation import warm
from pfedlora_flwr.federation.flower_compat import Client, Mod
from pfedlora_flwr.keys import Scalar

if TYPE_CHECKING:
    import torch

Reader = Callable[[Context], RunConfig]
"""Reads a run's keys from Flower's context."""


@lru_cache(maxsize=2)
def _config(items: tuple[tuple[str, Scalar], ...]) -> RunConfig:
    from pfedlora_flwr.config import run_config

    return run_config(dict(items))


def config_of(context: Context) -> RunConfig:
    """The run's keys, as Flower's run-config has them. Raises UserError."""
    from pfedlora_flwr.federation.census import of_client

    return _config(tuple(sorted(of_client(context).items())))


@lru_cache(maxsize=2)
def prepare_process(device: torch.device) -> None:
    """What holds for a whole process that trains on `device`; the results depend on it."""
    import torch

    from pfedlora_flwr.federation.model_cache import MODELS
    from pfedlora_flwr.training.device import keep_freed_memory, memory_share

    if device.type == "cpu":
        torch.set_num_threads(1)
        keep_freed_memory()
    else:
        # TF32 products, as cuDNN's convolutions have by default
        torch.set_float32_matmul_precision("high")
        share = memory_share()
        if share < 1:
            torch.cuda.set_per_process_memory_fraction(share)
        MODELS.limit = int(torch.cuda.get_device_properties(device).total_memory * share) // 4


def client_fn(context: Context, read: Reader = config_of) -> Client:
    """This node's client, as its node-config and the run's configuration say."""
    from pfedlora_flwr.federation.client import PersonalisedClient
    from pfedlora_flwr.runs.clear import scores_told

    config = read(context)
    e, x = config.experiment, config.execution
    client = PersonalisedClient(
        e, context.node_config, x.data_path, scores_told(e, x), context.run_id
    )
    prepare_process(client.device)
    return client.to_client()


class _OwnApp(ClientApp):
    """Without handlers beside its own."""

    def query(self, *args: Any, **how: Any) -> Any:
        """Raises UserError, as `train` and `evaluate` do."""
        raise UserError(
            "the ClientApp of app_of takes no handlers: what one would do is a mod's, app_of(read,"
            " first=[mod])"
        )

    train = evaluate = query


def app_of(read: Reader, first: Sequence[Mod] = (), *, node_keys: Sequence[str] = ()) -> ClientApp:
    """The ClientApp of a Flower app of one's own.

    Args:
        read: The run's keys from Flower's context.
        first: Mods of one's own. They see messages that the site's gate has let in, before what
            this package's other mods do to them, and replies after.
        node_keys: Keys of the node-config that these mods read.
    """
    from pfedlora_flwr.federation.chain import mods
    from pfedlora_flwr.site.gate import gate

    every = [gate(read, node_keys), *first, *mods(read)]
    return _OwnApp(client_fn=lambda context: client_fn(context, read), mods=every)


@lru_cache(maxsize=1)
def here() -> ClientApp:
    """The ClientApp that answers in this process."""
    return app_of(config_of)


class _NodesApp(_OwnApp):
    """Its messages are answered by the node's warm worker, or else in this process."""

    def __call__(self, message: Message, context: Context) -> Message:
        reply = warm.answered(message, context)
        return here()(message, context) if reply is None else reply


app = _NodesApp()
