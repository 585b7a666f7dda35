"""The server's access to a run's clients: waits for them, sends instructions, opens replies."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Literal

from flwr.app import Message
from flwr.serverapp import Grid

from pfedlora_flwr.data.registry import find
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.exchange import Refuse, exchange
from pfedlora_flwr.federation.flower_compat import (
    bound_retries,
    in_one_machine,
    is_lost,
    is_simulation,
)
from pfedlora_flwr.federation.messages import Config
from pfedlora_flwr.federation.nodes import WORKER_GONE, living_nodes, lost_nodes
from pfedlora_flwr.federation.roster import Roster
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.models.anchored import stamp_at
from pfedlora_flwr.models.spec import ANCHORS
from pfedlora_flwr.runs.data_name import keep_sites, sites_told
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.ledger import Cost
from pfedlora_flwr.runs.rows import VisitRow

logger = logging.getLogger(__name__)
Phase = Literal["training", "evaluating", "adapting"]
Replies = Mapping[int, wire.Reply]
"""By client."""
Write = Callable[[Round, int, int, Phase], tuple[Message, Cost]]
Fail = Callable[[Round, int, str], None]
_TELL = 30.0
"""Seconds between two lines on nodes that are waited for."""
_SLOW, _LATER = 2.0, 10.0
"""An answer is slow if it takes so many times as long as all others and so many seconds more."""


class RunFailed(RuntimeError):
    """The run cannot go on; what it has done is on disk, and `--resume` continues it."""


class RunDiverged(RunFailed):
    """Training has diverged in `round`: an outcome, which another attempt does not change."""

    def __init__(self, round: int, why: str) -> None:
        super().__init__(f"diverged in round {round}: {why}")
        self.round = round


@dataclass
class Clients:
    """They are connected when this is made; RunFailed is raised when too few are within
    `node-timeout`.

    left: the clients that are there no more, and why. write: the instruction of a round to a
    client on a node, and what it costs to send. fail: told of a client without an answer, and why.
    refuse: told of a message or a node that is no client's.
    """

    grid: Grid
    method: Method
    execution: Execution
    run: RunDirectory
    left: Mapping[int, str]
    write: Write
    fail: Fail
    refuse: Refuse

    def __post_init__(self) -> None:
        method, x = self.method, self.execution
        # by client, how long its last visit took: long ones start first
        self._seconds: dict[int, float] = {}
        self._workers = 0  # processes that trained in the last round
        # seconds until the answers of the last training, and whose was slow
        self._took = dict[int, float]()
        self._slow: int | None = None
        bound_retries(self.grid, x.node_timeout)
        # known once Ray is there
        self._simulated, self._nodes = is_simulation(self.grid), frozenset[str]()
        self.roster = Roster(
            self.grid,
            method.experiment.clients,
            self.run.numbers_file,
            self.run.partition,
            self.refuse,
            min(60.0, x.node_timeout / 2),
            self.notice,
            classes=method.task.classes,
            known=sites_told(self.run),
            left=self.left,
            data=_data_here(method, x) if self._simulated else "",
            anchors=b"" if self._simulated else _anchors(method.experiment, x),
            sites=x.sites,
            alike=self._simulated,
        )
        self._connect()
        self._nodes = living_nodes()

    def messages(
        self, round: Round, clients: Iterable[int], phase: Phase, wait: float | None = None
    ) -> dict[int, Message]:
        """The instructions, by client, counted as sent to those that are connected."""
        messages = {}
        for client, node in self.connected(round, clients, wait).items():
            messages[client], cost = self.write(round, client, node, phase)
            if phase == "training":
                round.send(client, cost)
        return messages

    def connected(
        self, round: Round, clients: Iterable[int], wait: float | None = None
    ) -> dict[int, int]:
        """Their nodes, by client. Waits for clients that are not connected; one that is turned away
        or is away for `wait` seconds (None: `node-timeout`) has failed."""
        wanted, node_of = list(clients), self.roster.node_of
        if any(client not in node_of for client in wanted):
            there = sum(client in node_of for client in wanted)
            timeout = self.execution.node_timeout if wait is None else wait
            with WaitingLog(there, len(wanted), timeout) as told:
                self.roster.wait_for(wanted, timeout, told.look)
            node_of = self.roster.node_of
            self._keep_sites()
        turned_away = self.roster.turned_away
        for client in wanted:
            if client not in node_of:
                why = turned_away.get(client)
                self.fail(round, client, f"turned away: {why}" if why else "not connected")
        return {client: node_of[client] for client in wanted if client in node_of}

    def _keep_sites(self) -> None:
        told = self.roster
        names = {} if self.method.experiment.hides_clients else told.names
        versions = {} if in_one_machine(self.grid) else told.versions
        keep_sites(self.run, told.own, told.class_names, told.columns, versions, names)

    def ask(self, round: Round, messages: Mapping[int, Message], phase: Phase) -> Replies:
        """The opened replies that are no errors. A client that failed is asked once more within the
        round: when all have answered, or half of the time is over, and silent ones are waited for
        meanwhile."""
        deadline = time.monotonic() + self.execution.round_timeout
        of, arrivals = len(messages), itertools.count(1)
        # by client, the last message to it, and of those asked once alone
        asked, once = dict(messages), dict(messages)
        heard: dict[str, wire.Reply | wire.Failed] = {}  # by the message that is answered
        began, took = time.monotonic(), dict[str, float]()
        self.run.progress(phase=phase, round=round.number, done=0, of=of)

        def arrived(reply: Message) -> None:
            self.notice(reply)
            self.run.progress(phase=phase, round=round.number, done=min(next(arrivals), of), of=of)
            heard[reply.metadata.reply_to_message_id] = _read(reply)
            took[reply.metadata.reply_to_message_id] = time.monotonic() - began

        def failed() -> dict[int, wire.Failed]:
            """Of the clients that were asked once."""
            answers = {c: heard.get(m.metadata.message_id) for c, m in once.items()}
            return {c: answer for c, answer in answers.items() if isinstance(answer, wire.Failed)}

        while True:
            order = sorted(messages, key=lambda client: -self._seconds.get(client, 0.0))
            # one alone is never left with a long visit while others wait
            ahead = 2 * self._workers if self._workers > 1 else 0
            exchange(
                self.roster.grid,
                [messages[c] for c in order],
                max(1.0, deadline - time.monotonic()),
                self.refuse,
                arrived,
                ahead,
                sent=[
                    m
                    for c, m in asked.items()
                    if c not in messages and m.metadata.message_id not in heard
                ],
                enough=lambda: bool(failed()),
            )
            again = failed()
            if not again or time.monotonic() >= deadline:
                break
            for client, reason in again.items():
                del once[client]
                logger.warning(
                    "round %d: client %d failed (%s); it is asked once more",
                    round.number,
                    client,
                    reason,
                )
            # half of the time that is left: the others need the rest
            wait = min(self.execution.node_timeout, (deadline - time.monotonic()) / 2)
            self.roster.refresh(max(1.0, wait))
            messages = self.messages(round, again, phase, wait)
            asked |= messages
        replies = {}
        for client, message in asked.items():
            answer = heard.get(message.metadata.message_id) or _read(None)
            if isinstance(answer, wire.Reply):
                replies[client] = answer
            elif client not in round.failures:
                self.fail(round, client, str(answer))
        if phase == "training":
            self._took = {c: took[asked[c].metadata.message_id] for c in replies}
        return replies

    def tell_best(self, said: Mapping[int, Config]) -> None:
        """Tells clients that keep their models themselves which version is the best round's; a
        line for one that did not hear it."""
        if in_one_machine(self.grid) and not self.roster.own:  # they share the run's directory
            return
        wait, node_of = min(60.0, self.execution.node_timeout), self.roster.node_of
        there = [client for client in said if client in node_of]
        messages = [wire.best_message(node_of[k], said[k], wait) for k in there]
        told = dict(
            zip(there, exchange(self.roster.grid, messages, wait, self.refuse), strict=True)
        )
        for client in said:
            try:
                wire.read_reply(told[client][1] if client in told else None)
            except wire.Failed as why:
                logger.warning("client %d was not told its best version: %s", client, why)

    def notice(self, reply: Message) -> None:
        """Raises RunFailed if a simulation has lost the process of a client: Flower would go on
        to hand clients to it.

        What a real node says of Ray is its own affair: it fails alone.
        """
        if not self._simulated or not is_lost(reply):
            return
        logger.warning("Ray says: %s", reply.error.reason)
        if lost := lost_nodes(self._nodes or living_nodes()):
            raise RunFailed(
                f"the Ray node {', '.join(lost)} is gone; without it, or once it is back,"
                " resume=true goes on"
            )
        why = (
            "often because memory is short, of which fewer actors need less; logs/run.log has what"
            " Ray says"
        )
        raise RunFailed(f"{WORKER_GONE} ({why}); resume=true goes on")

    def learn(self, visits: Sequence[VisitRow], workers: int) -> None:
        """What the last round says of the next: how long visits take, and how many processes share
        them."""
        self._seconds |= {visit["client"]: sum(visit["seconds"].values()) for visit in visits}
        self._workers = workers
        if visits and self._took and not in_one_machine(self.grid):  # under masks none is told
            self._tell_slow(visits[0]["round"])

    def _tell_slow(self, round: int) -> None:
        """A line on the client whose answer took much longer than all others; again only once it is
        another, or has not been meanwhile."""
        took, before = self._took, self._slow
        *others, last = sorted(took, key=lambda client: took[client])
        most = max((took[client] for client in others), default=took[last])
        self._slow = last if took[last] > _SLOW * most + _LATER else None
        if self._slow not in (None, before):
            text = "round %d: client %d is slow: its answer took %.0f s, %.0f of them its visit"
            text += "; the others took %.0f s at most"
            logger.warning(text, round, last, took[last], self._seconds.get(last, 0.0), most)

    def _connect(self) -> None:
        x, roster = self.execution, self.roster
        wanted, began = x.min_clients or roster.places, time.monotonic()
        self.run.progress(phase="connecting", done=0, of=wanted)

        def connected(done: int) -> None:
            self.run.progress(phase="connecting", done=done, of=wanted)
            told.look(done, len(roster.refused))

        with WaitingLog(0, wanted, x.node_timeout) as told:
            enough = roster.wait_for_count(wanted, x.node_timeout, connected)
        if roster.node_of:  # a run that fails here says whose data it was to have, too
            self.run.write_partition(roster.partition)
            self._keep_sites()
        if not enough:
            waited = ""
            if time.monotonic() - began >= x.node_timeout:
                waited = f" within node-timeout ({x.node_timeout:g} s)"
            turned_away = "; ".join(
                f"{count} gave no answer in time"
                if why == wire.NO_ANSWER
                else f"{count} turned away: {why}"
                for why, count in Counter(roster.refused.values()).most_common(3)
            )
            away = f"away or not registered: {', '.join(roster.away)}" if roster.away else ""
            fewer = "lower min-clients to go on with the others" if roster.node_of else ""
            advice = "; ".join(filter(None, [turned_away, away, fewer])) or "start their nodes"
            raise RunFailed(
                f"only {len(roster.node_of)} of {wanted} clients connected{waited}; {advice}"
            )


def _data_here(method: Method, execution: Execution) -> str:
    """What the dataset is known by in this process; empty where its name says that, and where there
    is none: clients say why."""
    e = method.experiment
    try:
        return "" if find(e.dataset).shape else DataSetup(e, execution.data_path).data
    except UserError:
        return ""


def _anchors(e: Experiment, x: Execution) -> bytes:
    """The file of anchors that nodes are sent. Raises UserError for one that is too large."""
    if not (x.anchors_send and e.representation.startswith(ANCHORS)):
        return b""
    file = stamp_at(Path(e.representation.removeprefix(ANCHORS)))
    sent = Path(file[0]).read_bytes()
    if len(sent) > x.anchors_send * 1e6:
        raise UserError(
            f"anchors {file[0]!r} have {len(sent) / 1e6:.1f} MB; allowed: anchors.send,"
            f" {x.anchors_send} MB"
        )
    return sent


def _read(reply: Message | None) -> wire.Reply | wire.Failed:
    """A reply, or why there is none."""
    try:
        return wire.read_reply(reply)
    except wire.Failed as failure:
        return failure


class WaitingLog:
    """Within it the run's log says that nodes are waited for: at once, and then every half minute.

    of: how many. timeout: seconds for which one is.
    """

    def __init__(self, connected: int, of: int, timeout: float) -> None:
        self._connected, self._of, self._timeout = connected, of, timeout
        self._refused = 0
        self._begun = time.monotonic()
        self._over = Event()
        self._thread = Thread(target=self._go_on, daemon=True)

    def look(self, connected: int, refused: int = 0) -> None:
        """So many are there now, and so many turned away."""
        self._connected, self._refused = connected, refused

    def __enter__(self) -> WaitingLog:
        self._say("")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._over.wait(_TELL):
            self._say(f", for {time.monotonic() - self._begun:.0f} s so far")

    def _say(self, waited: str) -> None:
        text = "%d of %d nodes are ready%s; waiting%s, at most %g s"
        away = f", {self._refused} turned away, which are asked again" if self._refused else ""
        logger.info(text, self._connected, self._of, away, waited, self._timeout)
