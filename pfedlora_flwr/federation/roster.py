"""Which node is which client: each node is asked once who it is."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from pfedlora_flwr.data.local import OWN
from pfedlora_flwr.federation import wire
from pfedlora_flwr.files import write_atomically

logger = logging.getLogger(__name__)
_POLL = 0.05
_SLOW_POLL = 1.0
_QUESTION = 60.0
_MOST_CLASSES, _LONGEST_NAME = 10**5, 200
_HANDED_OUT = 0.15
"""Seconds in which a simulation surely hands out what has been sent (it looks every 0.1)."""
Properties = Mapping[str, Any]
Refuse = Callable[[str], None]


class Roster:
    """The connected nodes and the clients behind them.

    A node that says its partition-id is that client. One that has data of its own and no partition-id goes by the name that it keeps
    in its state-path: it gets a number that is free, and `memory` (a file) keeps that number for it.

    refuse: told, once a node, why a node is no client. patience: seconds for which a named node that is gone keeps its number.
    """

    def __init__(self, grid: Grid, clients: int, memory: Path, fingerprint: str | None, refuse: Refuse, patience: float) -> None:
        self.grid = grid
        self.clients = clients
        self.node_of: dict[int, int] = {}
        self.refused: dict[int, str] = {}
        self._fingerprint = fingerprint if fingerprint != OWN else None
        self._settled = self._fingerprint is not None
        self._names: list[str] = []
        self._memory = memory
        self._number_of: dict[str, int] = json.loads(memory.read_text()) if memory.exists() else {}
        self._refuse = refuse
        self._patience = patience
        self._claims: dict[int, Properties] = {}  # by node, in the order in which they came
        self._unclear: dict[int, tuple[int, float]] = {}  # by node without a good answer: how often it was asked, and when to ask again
        self._gone: dict[int, float] = {}  # by client that is not connected: since when
        self._update_gone()

    @property
    def client_of(self) -> dict[int, int]:
        """The client behind each connected node."""
        return {node: client for client, node in self.node_of.items()}

    @property
    def partition(self) -> str:
        """The fingerprint of the partition that the nodes share, or `own`."""
        return self._fingerprint or OWN

    def wait_for(self, clients: Sequence[int], timeout: float) -> None:
        """Waits until all these clients are connected, or each that is not has been away for `timeout` seconds."""
        pause = _POLL
        while True:
            self.refresh(timeout)
            missing = [self._gone[c] for c in clients if c not in self.node_of]
            left = max(missing, default=0.0) + timeout - time.monotonic()
            if not missing or left <= 0:
                return
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _SLOW_POLL)

    def wait_for_count(self, count: int, timeout: float, report: Callable[[int], None]) -> bool:
        """Waits until `count` clients are connected; False when they are not within `timeout` seconds, or all nodes are turned away."""
        deadline, pause = time.monotonic() + timeout, _POLL
        while True:
            self.refresh(max(1.0, deadline - time.monotonic()))
            report(len(self.node_of))
            if len(self.node_of) >= count:
                self._settled = True
                return True
            if time.monotonic() >= deadline or (len(self.refused) >= self.clients and not self.node_of):
                return False
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 1.5, _SLOW_POLL)

    def refresh(self, timeout: float = _QUESTION) -> None:
        """Forgets nodes that are gone, and asks new ones who they are, waiting for their answers at most `timeout` seconds."""
        online = set(self.grid.get_node_ids())
        self._claims = {node: said for node, said in self._claims.items() if node in online}
        self.refused = {node: why for node, why in self.refused.items() if node in online}
        self._unclear = {node: asked for node, asked in self._unclear.items() if node in online}
        settled = self._claims.keys() | {n for n in self.refused if n not in self._unclear}
        due = {n for n, (_, when) in self._unclear.items() if when <= time.monotonic()}
        new = sorted(online - settled - (self._unclear.keys() - due))
        if new:
            self._ask(new, min(timeout, _QUESTION + 0.1 * len(new)))
        self._assign()
        self._update_gone()

    def _ask(self, nodes: list[int], timeout: float) -> None:
        """Takes down what the nodes claim. One that fails is asked again later, and less and less often."""
        for question, answer in exchange(self.grid, [wire.properties_message(n, timeout) for n in nodes], timeout, self._refuse):
            node = question.metadata.dst_node_id
            try:
                said = _checked(wire.read_reply(answer).metrics, self.clients)
            except wire.Failed as failure:
                times = self._unclear.get(node, (0, 0.0))[0] + 1
                self._unclear[node] = times, time.monotonic() + min(_QUESTION, 2.0**times)
                self._turn_away(node, str(failure))
            except ValueError as error:
                self._unclear.pop(node, None)
                self._turn_away(node, str(error))
            else:
                self._unclear.pop(node, None)
                self._claims[node] = said

    def _assign(self) -> None:
        """Who is who, by all claims together; a client's node stays as long as it is connected."""
        if not self._settled:  # until there are enough nodes to begin, most of them say what the partition and the classes are
            partitions = Counter(str(said["partition"]) for said in self._claims.values() if said["partition"] != OWN)
            self._fingerprint = partitions.most_common(1)[0][0] if partitions else None
            self._names = _most_supported([said["classes"] for said in self._claims.values()])
            self.node_of = {}
        self.node_of = {client: node for client, node in self.node_of.items() if node in self._claims}
        seated = set(self.node_of.values())
        for node, said in sorted(self._claims.items(), key=lambda claim: claim[1]["name"] not in self._number_of):  # known names first
            if node in seated:
                continue
            classes = said["classes"]
            try:
                if said["partition"] not in (OWN, self._fingerprint):
                    raise ValueError("its data or partition differs from the other nodes'")
                if self._names[: len(classes)] != classes:
                    told = f"its classes are {classes[:20]}, other nodes' {self._names[:20]}"
                    raise ValueError(f"{told}: a class needs the same number everywhere")
                self._seat(node, said)
            except ValueError as error:
                self._turn_away(node, str(error))

    def _seat(self, node: int, said: Properties) -> None:
        client = said["partition-id"]
        if client < 0:
            client = self._number(said["name"])
        if client not in self.node_of:
            self.node_of[client] = node
            self.refused.pop(node, None)
        elif node not in self.refused:  # its claim stands, for when the other one is gone
            self._turn_away(node, f"partition-id {client} is taken by node {self.node_of[client]}, which is connected")

    def _number(self, name: str) -> int:
        """The number of a node that has a name and no partition-id."""
        if name not in self._number_of:
            free = [c for c in range(self.clients) if c not in self.node_of and c not in self._number_of.values()]
            free = free or [c for c in self._gone if c not in self.node_of and time.monotonic() - self._gone[c] >= self._patience]
            if not free:
                raise ValueError(f"all {self.clients} clients have their nodes, or have not been away for long")
            self._number_of = {n: c for n, c in self._number_of.items() if c != free[0]} | {name: free[0]}
            write_atomically(self._memory, json.dumps(self._number_of).encode())
        return self._number_of[name]

    def _turn_away(self, node: int, why: str) -> None:
        if self.refused.get(node) != why:
            self.refused[node] = why
            self._refuse(f"node {node} is no client of this run: {why}")

    def _update_gone(self) -> None:
        away = [c for c in range(self.clients) if c not in self.node_of]
        self._gone = {c: self._gone.get(c, time.monotonic()) for c in away}


def _most_supported(told: Sequence[list[str]]) -> list[str]:
    """The class names that most nodes agree with: their own are the first of these, or all."""
    return max(told, key=lambda names: (sum(names[: len(other)] == other for other in told), len(names)), default=[])


def _checked(said: Properties, clients: int) -> Properties:
    """A node's answer. Raises ValueError for one that no client of ours gives."""
    number, partition, name = said.get("partition-id"), said.get("partition"), said.get("name", "")
    try:
        classes = json.loads(said.get("classes", "[]"))
    except (TypeError, ValueError, RecursionError):
        classes = None
    if type(number) is not int or not isinstance(partition, str) or not isinstance(name, str) or not isinstance(classes, list):
        raise ValueError("its answer is not one of this app's clients'")
    if number >= clients or (number < 0 and not name):
        raise ValueError(f"partition-id is {number}; allowed: 0 to {clients - 1}")
    if not all(isinstance(c, str) for c in classes) or len(classes) > _MOST_CLASSES or len(name) > _LONGEST_NAME:
        raise ValueError("its name or its class names are none that a client of ours gives")
    return {"partition-id": number, "partition": partition, "name": name, "classes": classes}


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    refuse: Refuse,
    arrived: Callable[[], None] = lambda: None,
    first: int = 0,
) -> list[tuple[Message, Message | None]]:
    """Sends the messages and waits at most `timeout` seconds; each message with its reply, or None where none came.

    A reply that was not asked for, comes twice or comes from another node is refused; the wait for the right one goes on.
    first: send so many ahead of the others. A simulation hands out what it finds in the order of its nodes, so this is how long
    turns start before short ones and no actor is left with a long one at the end.
    """
    ahead, rest = messages[:first], messages[first:]
    if ahead and rest:
        grid.push_messages(ahead)
        time.sleep(_HANDED_OUT)
    grid.push_messages(rest or ahead)
    asked = {m.metadata.message_id: m for m in messages}
    replies: dict[str, Message] = {}
    deadline, last = time.monotonic() + timeout, time.monotonic()
    while len(replies) < len(asked) and time.monotonic() < deadline:
        came = _pull(grid, [i for i in asked if i not in replies])
        for reply in came:
            about, sender = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            if about not in asked:
                refuse(f"a reply of node {sender} is refused: it answers a message that was not sent in this round")
            elif about in replies:
                refuse(f"a reply of node {sender} is refused: it comes twice")
            elif not reply.has_error() and sender != asked[about].metadata.dst_node_id:
                refuse(f"a reply of node {sender} is refused: node {asked[about].metadata.dst_node_id} was asked")
            else:
                replies[about] = reply  # an error reply has no other sign of whose it is
                arrived()
        now = time.monotonic()
        last = now if came else last
        if len(replies) < len(asked):
            time.sleep(min(_POLL / 2 + (now - last) / 50, _SLOW_POLL / 2))  # the wait for the last reply stays a small share of it
    return [(m, replies.get(m.metadata.message_id)) for m in messages]


def _pull(grid: Grid, ids: list[str]) -> list[Message]:
    """The replies that are there. One that cannot be read must not take the others with it."""
    try:
        return list(grid.pull_messages(ids))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("a reply cannot be read (%s: %s)", type(error).__name__, str(error)[:200])
    found: list[Message] = []
    for one in ids:
        try:
            found += grid.pull_messages([one])
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # its timeout is what is left to tell this client's failure
    return found
