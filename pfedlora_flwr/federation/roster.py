"""Which node is which client: each node is asked once who it is."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import Grid

from pfedlora_flwr.data.local import OWN, SAME_DATA
from pfedlora_flwr.errors import UserError, as_line, differing, short
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.claim import Claim, differing_versions
from pfedlora_flwr.federation.exchange import POLL, SLOW_POLL, Refuse, exchange
from pfedlora_flwr.federation.messages import LONGEST_WORD
from pfedlora_flwr.files import write_atomically

logger = logging.getLogger(__name__)
_QUESTION = 60.0
"""Seconds that a node may take to say who it is; twice as long each time that it was silent."""
_TRIED = 3
"""Nodes that are alike are asked, one after the other, before all are given up; the times that one
that says who it is tells a failure before no round waits for it; and that one is silent before it
is asked for a short time."""
_AGAIN = 20.0
"""Seconds of that short time."""
_TOLD, _OTHERS = 400, "other nodes'"
"""Characters of a node's base that the line on it names, and whose come after."""


@dataclass
class Roster:
    """The connected nodes and the clients behind them.

    A node that says its partition-id is that client. One that has data of its own and no
    partition-id goes by the name that it keeps in its state-path: it gets a number that is free,
    and `memory` (a file) keeps that number for it.

    refuse: told, once a node, why a node is no client. patience: seconds for which a named node
    that is gone keeps its number. arrived: told of every answer. classes: how many the models tell
    apart. known: the names of classes and
    columns that the sites of a resumed run had. left: the clients that are there no more,
    whose numbers nobody gets, and why.
    data: what the dataset is known by that the nodes must share (`Site.data`), where the server has
    it, too; else most of them say it.
    anchors: the file of the run's, where it is sent.
    sites: the registered names of the nodes that may be asked; none: all.
    alike: any node can be any client, as in a simulation, which keeps what a client has by its
    number: one is asked for all."""

    grid: Grid
    clients: int
    memory: Path
    fingerprint: str | None
    refuse: Refuse
    patience: float
    arrived: Callable[[Message], None] = lambda answer: None
    _: KW_ONLY
    classes: int
    known: tuple[Sequence[str], Sequence[str]] = ((), ())
    left: Mapping[int, str] = field(default_factory=dict)
    data: str = ""
    anchors: bytes = b""
    sites: Sequence[str] = ()
    alike: bool = False

    def __post_init__(self) -> None:
        self.node_of: dict[int, int] = {}
        self.refused: dict[int, str] = {}
        self._fingerprint = self.fingerprint if self.fingerprint != OWN else None
        self._settled = self._fingerprint is not None
        # of the classes of all nodes with data of their own, of the features of those with a table
        self.class_names, self.columns = [*self.known[0]], [*self.known[1]]
        self._base: str | None = None
        # by connected node, its registered name, empty where it has none
        self.site_of: dict[int, str] = {}
        numbers = json.loads(self.memory.read_text()) if self.memory.exists() else {}
        self._number_of: dict[str, int] = numbers
        self._claims: dict[int, Claim] = {}  # by node, in the order in which they came
        # by node without a good answer: how often it was asked, when to ask again, and the name or
        # the client's number that it gave all the same
        self._unclear: dict[int, tuple[int, float, str | int]] = {}
        # nodes that did not answer when they were asked last: theirs may be a process that is yet
        # to start
        self._silent: set[int] = set()
        self._online = 0
        self._gone: dict[int, float] = {}  # by client that is not connected: since when
        self._update_gone()

    @property
    def places(self) -> int:
        """The number of clients that have not left."""
        return self.clients - len(self.left)

    @property
    def client_of(self) -> dict[int, int]:
        """The client behind each connected node."""
        return {node: client for client, node in self.node_of.items()}

    @property
    def turned_away(self) -> dict[int, str]:
        """The clients whose nodes are connected and turned away, so that no round waits for them,
        and why."""
        known_as = {
            node: claim.name if claim.partition_id < 0 else claim.partition_id
            for node, claim in self._claims.items()
        } | {node: name for node, (times, _, name) in self._unclear.items() if times >= _TRIED}
        of = self._number_of | {client: client for client in range(self.clients)}
        return {of[k]: why for n, why in self.refused.items() if (k := known_as.get(n)) in of}

    @property
    def partition(self) -> str:
        """The fingerprint of the partition that the nodes share, or `own`."""
        return self._fingerprint or OWN

    @property
    def _claim_of(self) -> dict[int, Claim]:
        """By client, what its node claims."""
        return {c: self._claims[n] for c, n in self.node_of.items() if n in self._claims}

    @property
    def own(self) -> set[int]:
        """The clients whose nodes say that their data is their own."""
        return {client for client, claim in self._claim_of.items() if claim.partition == OWN}

    @property
    def away(self) -> list[str]:
        """The sites that the run names and that are not connected, or not registered."""
        return [name for name in self.sites if name not in self.site_of.values()]

    @property
    def names(self) -> dict[int, str]:
        """By client, the name under which its node is registered, if it has one."""
        of = {client: self.site_of.get(node, "") for client, node in self.node_of.items()}
        return {client: name[:LONGEST_WORD] for client, name in of.items() if name}

    @property
    def versions(self) -> dict[int, dict[str, str]]:
        """By client, those of its node's packages."""
        return {c: claim.versions for c, claim in self._claim_of.items()}

    @property
    def withheld(self) -> dict[int, list[str]]:
        """By client, the rules `egress.…` by which its site keeps something back."""
        return {c: claim.withheld for c, claim in self._claim_of.items() if claim.withheld}

    def wait_for(
        self,
        clients: Sequence[int],
        timeout: float,
        report: Callable[[int], None] = lambda connected: None,
    ) -> None:
        """Waits until all these clients are connected, or each that is not is turned away or has
        been away for `timeout` seconds; reports how many are."""
        pause = POLL
        while True:
            self.refresh(timeout, patient=self._left_for(clients, timeout) > 0)
            report(len(clients) - len(self._gone.keys() & set(clients)))
            left = self._left_for(clients, timeout)
            if left <= 0:
                return
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, SLOW_POLL)

    def _left_for(self, clients: Sequence[int], timeout: float) -> float:
        """Seconds for which one of these clients is still to be waited for."""
        missing = self._gone.keys() & set(clients) - self.turned_away.keys()
        return max((self._gone[c] + timeout - time.monotonic() for c in missing), default=0.0)

    def wait_for_count(self, count: int, timeout: float, report: Callable[[int], None]) -> bool:
        """Waits until `count` clients are connected; False when they are not within `timeout`
        seconds, or all nodes are turned away."""
        deadline, pause = time.monotonic() + timeout, POLL
        while True:
            self.refresh(max(1.0, deadline - time.monotonic()))
            report(len(self.node_of))
            if len(self.node_of) >= count:
                self._settled = True
                return True
            enough = min(max(1, self._online), _TRIED) if self.alike else self.places
            if time.monotonic() >= deadline or (
                len(self.refused.keys() - self._silent) >= enough and not self.node_of
            ):
                return False
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 1.5, SLOW_POLL)

    def refresh(self, timeout: float = _QUESTION, *, patient: bool = True) -> None:
        """Forgets nodes that are gone, and asks new ones who they are, waiting for their answers at
        most `timeout` seconds; unless `patient`, not long for those that have been silent again and
        again."""
        self.site_of = (
            dict.fromkeys(self.grid.get_node_ids(), "")
            if self.alike and not self.sites
            else connected(self.grid, self.sites)
        )
        online = set(self.site_of)
        self._online = len(online)
        self._claims = {node: claim for node, claim in self._claims.items() if node in online}
        self.refused = {node: why for node, why in self.refused.items() if node in online}
        self._unclear = {node: asked for node, asked in self._unclear.items() if node in online}
        settled = self._claims.keys() | {n for n in self.refused if n not in self._unclear}
        due = {n for n, (_, when, _) in self._unclear.items() if when <= time.monotonic()}
        new = sorted(online - settled - (self._unclear.keys() - due))
        if self.alike:
            new = [] if self.node_of else new[:1]
        if new:
            silent = [self._unclear[n][0] for n in new if n in self._silent & self._unclear.keys()]
            patience = _QUESTION * 2 ** max(silent, default=0)
            if not patient and len(silent) == len(new) and min(silent) >= _TRIED:
                patience = _AGAIN
            self._ask(new, min(timeout, patience + 0.1 * len(new)))
        self._assign()
        if self.alike and self.node_of:
            self.node_of = dict(zip(range(self.clients), sorted(online), strict=False))
        self._update_gone()

    def _ask(self, nodes: list[int], timeout: float) -> None:
        """Takes down what the nodes claim. One that fails is asked again later, and less and less
        often."""
        questions = [wire.properties_message(n, timeout, self.data, self.anchors) for n in nodes]
        for question, answer in exchange(self.grid, questions, timeout, self.refuse, self.arrived):
            node = question.metadata.dst_node_id
            if wire.unanswered(answer):
                self._silent.add(node)
            else:
                self._silent.discard(node)
            try:
                metrics = wire.read_reply(answer).metrics
                claim = Claim.from_metrics(metrics, self.clients, self.classes)
            except wire.Failed as failure:
                times = self._unclear[node][0] + 1 if node in self._unclear else 1
                again = time.monotonic() + min(_QUESTION, 2.0**times)
                self._unclear[node] = times, again, failure.name
                # what it once said is more than that it is silent now
                if node not in self._silent or node not in self.refused:
                    self._turn_away(node, str(failure))
            except ValueError as error:
                self._unclear.pop(node, None)
                self._turn_away(node, str(error))
            else:
                self._unclear.pop(node, None)
                self._claims[node] = claim

    def _assign(self) -> None:
        """Who is who, by all claims together; a client's node stays as long as it is connected."""
        # until there are enough nodes to begin, most of them say what the partition and the classes
        # are
        if not self._settled:
            partitions = Counter(
                claim.partition for claim in self._claims.values() if claim.partition != OWN
            )
            self._fingerprint = partitions.most_common(1)[0][0] if partitions else None
            claims = self._claims.values()
            self.class_names = [*self.known[0]] or _most_supported(
                [claim.classes for claim in claims]
            )
            self.columns = [*self.known[1]] or _most_supported(
                [claim.columns for claim in claims if claim.columns]
            )
            self.node_of = {}
        held = Counter(c.data for c in self._claims.values() if c.partition == self._fingerprint)
        if held and not (self._settled and self.data):
            self.data = held.most_common(1)[0][0]
        if self._claims and (not self._settled or self._base is None):
            self._base = Counter(c.base for c in self._claims.values()).most_common(1)[0][0]
        self.node_of = {
            client: node for client, node in self.node_of.items() if node in self._claims
        }
        seated = set(self.node_of.values())
        # known names first
        for node, claim in sorted(
            self._claims.items(), key=lambda item: item[1].name not in self._number_of
        ):
            if node in seated:
                continue
            try:
                if claim.partition not in (OWN, self._fingerprint):
                    told = "its data or partition differs"
                    raise ValueError(f"{told} from {_OTHERS}: {SAME_DATA}")
                if claim.partition != OWN and claim.data != self.data:
                    told = "the order of its classes differs"
                    raise ValueError(f"{told} from {_OTHERS}: {SAME_DATA}")
                new, names = claim.name not in self._number_of, self.class_names
                if new and claim.classes[: len(names)] == names:
                    names = claim.classes  # it may have more than those before it
                if names[: len(claim.classes)] != claim.classes:
                    told = differing("classes", claim.classes, _OTHERS, names)
                    raise ValueError(
                        f"{told}: a class needs the same number everywhere; name all of them in"
                        " data.class-names, restore its classes, or begin a new run"
                    )
                if claim.columns and claim.columns != self.columns:
                    told = differing("columns", claim.columns, _OTHERS, self.columns)
                    both = ",".join(name for name in self.columns if name in claim.columns)
                    mend = f": set data.features={both}" if 0 < len(both) <= _TOLD else ""
                    raise ValueError(f"{told}: a feature needs the same place everywhere{mend}")
                if claim.base != self._base:
                    own, others = (
                        short(b, _TOLD) if b else "none" for b in (claim.base, self._base)
                    )
                    raise ValueError(
                        f"its base is {own}, {_OTHERS} {others}: give it the files that they have"
                    )
                self._seat(node, claim)
                if node in self.node_of.values():  # who has no place extends nobody's classes
                    self.class_names = names
            except ValueError as error:
                self._turn_away(node, str(error))

    def _seat(self, node: int, claim: Claim) -> None:
        client = claim.partition_id
        if client < 0:
            client = self._number(claim.name)
        if client in self.left and not self.alike:
            raise ValueError(f"client {client} {self.left[client]}; stop its node")
        if client not in self.node_of:
            self.node_of[client] = node
            self.refused.pop(node, None)
            if told := differing_versions(claim.versions):
                logger.warning(
                    "client %d has %s: install the same versions everywhere", client, told
                )
        elif node not in self.refused:  # its claim stands, for when the other one is gone
            other = f"node {self.node_of[client]}, which is connected"
            self._turn_away(
                node,
                f"partition-id {client} is taken by {other}"
                if claim.partition_id >= 0
                else f"its state-path has the name of {other}: it is the same one before a restart,"
                " and gone in a minute, or the state-path is shared or a copy: give each its own",
            )

    def _number(self, name: str) -> int:
        """The number of a node that has a name and no partition-id."""
        if name not in self._number_of:
            free = [
                c
                for c in range(self.clients)
                if c not in self.node_of.keys() | self.left.keys()
                and c not in self._number_of.values()
            ]
            free = free or [
                c
                for c in self._gone
                if c not in self.node_of and time.monotonic() - self._gone[c] >= self.patience
            ]
            if not free:
                raise ValueError(
                    f"all {self.places} clients have their nodes, or have not been away for long"
                )
            if free[0] in self._number_of.values():
                text = "a site with another name takes the place of client %d, which is away"
                logger.warning(text, free[0])
            self._number_of = {n: c for n, c in self._number_of.items() if c != free[0]} | {
                name: free[0]
            }
            write_atomically(self.memory, json.dumps(self._number_of).encode())
        return self._number_of[name]

    def _turn_away(self, node: int, why: str) -> None:
        why = as_line(why)
        if self.refused.get(node) != why:
            self.refused[node] = why
            if node in self._silent:  # it may only be slow: nobody has refused it
                logger.warning("node %d does not say who it is (%s); it is asked again", node, why)
            else:
                self.refuse(f"node {node} is not a client of this run: {why}")

    def _update_gone(self) -> None:
        away = [c for c in range(self.clients) if c not in self.node_of and c not in self.left]
        self._gone = {c: self._gone.get(c, time.monotonic()) for c in away}


def _most_supported(told: Sequence[list[str]]) -> list[str]:
    """The class names that most nodes agree with: their own are the first of these, or all."""
    return max(
        told,
        key=lambda names: (sum(names[: len(other)] == other for other in told), len(names)),
        default=[],
    )


def connected(grid: Grid, sites: Sequence[str]) -> dict[int, str]:
    """The connected nodes that a run may ask, with the names under which they are registered at the
    SuperLink; where it names no sites, all of them. Raises UserError where names cannot tell nodes
    apart."""
    every = {node.node_id: node.name for node in grid.get_nodes()}
    if not sites:
        return every
    if every and not any(every.values()):
        raise UserError(
            f"sites is {','.join(sites)}, and no connected node has a name: register nodes with"
            " `flwr supernode register KEY CONNECTION --name NAME`"
        )
    found = {node: name for node, name in every.items() if name in sites}
    if twice := [name for name, count in Counter(found.values()).items() if count > 1]:
        raise UserError(f"two connected nodes are registered as site {twice[0]!r}: unregister one")
    return found
