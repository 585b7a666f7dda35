"""The number of clients of a simulation under `clients=auto`: it is that of its nodes, which a node
says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid

from pfedlora_flwr import config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.exchange import POLL
from pfedlora_flwr.federation.node_config import number_in
from pfedlora_flwr.keys import AUTO

CLIENTS = "clients"
_QUESTION = 60.0
"""Seconds in which a node answers."""


def of_server(grid: Grid, run_config: Mapping[str, Any]) -> RunConfig:
    """A run's keys as the server has them. Raises UserError, also where no node tells the number of
    nodes."""
    flat = dict(run_config)
    if flat.get(CLIENTS) == AUTO and not flat.get("sites"):  # else who is not named would be asked
        own = config.parse({"node-timeout": flat.get("node-timeout", 300.0)})
        flat[CLIENTS] = _counted(grid, own["node-timeout"])
    return config.run_config(flat)


def of_client(context: Context) -> dict[str, Any]:
    """A run's flat keys as a client has them, without `clients=auto`. Raises UserError where its
    node-config does not tell the number."""
    flat = dict(context.run_config)
    if flat.get(CLIENTS) == AUTO:
        if (parts := number_in(context.node_config, wire.COUNT)) is None:
            raise UserError(_not_told())
        flat[CLIENTS] = parts
    return flat


def _counted(grid: Grid, timeout: float) -> int:
    deadline = time.monotonic() + timeout
    while not (nodes := sorted(grid.get_node_ids())):
        if time.monotonic() >= deadline:
            raise UserError(f"clients is auto, and no node connected within {timeout:g} s")
        time.sleep(POLL)
    left = max(1.0, min(_QUESTION, deadline - time.monotonic()))
    for answer in grid.send_and_receive([wire.count_message(nodes[0], left)], timeout=left):
        try:
            return int(wire.read_reply(answer).metrics[wire.COUNT])
        except (wire.Failed, KeyError, TypeError, ValueError):
            break
    raise UserError(_not_told())


def _not_told() -> str:
    return (
        "clients is auto, which is for simulations: the nodes' node-configs do not say"
        f" {wire.COUNT}; set clients"
    )
