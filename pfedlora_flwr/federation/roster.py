"""Which node is which client: each node is asked once for its partition-id."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from pfedlora_flwr.federation import wire

logger = logging.getLogger(__name__)
_POLL = 0.05
_SLOW_POLL = 1.0


class Roster:
    """The connected nodes and the clients behind them."""

    def __init__(self, grid: Grid, clients: int) -> None:
        self.grid = grid
        self.clients = clients
        self.node_of: dict[int, int] = {}
        self.properties: dict[int, Mapping[str, Any]] = {}
        self._known: set[int] = set()

    @property
    def client_of(self) -> dict[int, int]:
        """The client behind each connected node."""
        return {node: client for client, node in self.node_of.items()}

    def wait_for(self, ready: Callable[[], bool], timeout: float, report: Callable[[int], None] = lambda connected: None) -> bool:
        """Looks for nodes until `ready()` or `timeout` seconds have passed; says whether it was ready."""
        deadline, pause = time.monotonic() + timeout, _POLL
        while True:
            self.refresh(max(1.0, deadline - time.monotonic()))
            report(len(self.node_of))
            if ready():
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 1.5, _SLOW_POLL)

    def refresh(self, timeout: float = 60.0) -> None:
        """Forgets nodes that are gone, and asks new ones who they are."""
        online = set(self.grid.get_node_ids())
        self.node_of = {client: node for client, node in self.node_of.items() if node in online}
        self._known &= online
        new = sorted(online - self._known)
        if not new:
            return
        self._known |= set(new)
        for question, answer in exchange(self.grid, [wire.properties_message(node, timeout) for node in new], timeout):
            node = question.metadata.dst_node_id
            try:
                properties = wire.read_reply(answer).metrics
                self._admit(node, int(properties["partition-id"]), properties)
            except (wire.Failed, KeyError, ValueError, TypeError) as error:
                logger.warning("node %s is no client of this run: %s", node, error)

    def _admit(self, node: int, client: int, properties: Mapping[str, Any]) -> None:
        if not 0 <= client < self.clients:
            raise ValueError(f"partition-id is {client}; allowed: 0 to {self.clients - 1}")
        if client in self.node_of:
            raise ValueError(f"partition-id {client} is taken by another connected node")
        fingerprints = {str(p["partition"]) for p in self.properties.values()} - {"own"}
        if str(properties["partition"]) not in {"own", *fingerprints} and fingerprints:
            raise ValueError("its data or partition differs from the other nodes'")
        self.node_of[client], self.properties[client] = node, properties


def exchange(
    grid: Grid, messages: Sequence[Message], timeout: float, arrived: Callable[[], None] = lambda: None
) -> list[tuple[Message, Message | None]]:
    """Sends the messages and waits at most `timeout` seconds; each message with its reply, or None where none came."""
    grid.push_messages(messages)
    replies: dict[str, Message] = {}
    waiting = {m.metadata.message_id for m in messages}
    deadline, pause = time.monotonic() + timeout, _POLL
    while waiting and time.monotonic() < deadline:
        came = list(grid.pull_messages(waiting))
        for reply in came:
            replies[reply.metadata.reply_to_message_id] = reply  # an error reply has no other sign of whose it is
            arrived()
        waiting -= replies.keys()
        pause = _POLL if came else min(pause * 1.2, _SLOW_POLL / 2)
        if waiting:
            time.sleep(pause)
    return [(m, replies.get(m.metadata.message_id)) for m in messages]
