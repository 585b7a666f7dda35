"""The Grid that Flower's SecAgg+ workflow uses: waits are bounded, and each stage's replies are
checked first."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1
from flwr.app import Message

from pfedlora_flwr.errors import brief, short
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.admission import LARGEST_METRICS
from pfedlora_flwr.federation.clients import Clients
from pfedlora_flwr.federation.exchange import exchange
from pfedlora_flwr.federation.flower_compat import (
    Key,
    Stage,
    bytes_to_public_key,
    ndarrays_to_parameters,
    secagg_record,
)
from pfedlora_flwr.federation.round import Round
from pfedlora_flwr.federation.secure.figures import SIZE
from pfedlora_flwr.methods.method import Refused
from pfedlora_flwr.runs.ledger import Cost

logger = logging.getLogger(__name__)
Tell = Callable[[Round, int, str], None]
UNTIL = {
    Stage.SETUP: 0.15,
    Stage.SHARE_KEYS: 0.3,
    Stage.COLLECT_MASKED_VECTORS: 0.85,
    Stage.UNMASK: 1.0,
}
"""The share of the round's time at which each stage ends: one that never answers must leave the
others theirs."""
_FOR = {
    Stage.SETUP: "its keys",
    Stage.SHARE_KEYS: "the shares of its keys",
    Stage.COLLECT_MASKED_VECTORS: "its update",
    Stage.UNMASK: "its shares of others' keys",
}
"""What a client is waited for in each."""
_LONGEST = 4096
"""Bytes of a key, a share or an encrypted pair of shares."""


@dataclass
class Stages:
    """The stages of one round. A client whose reply is missing, an error or not admitted is out;
    one that says an error is asked once more.

    download: what the instruction to train costs beside its message. size: elements of an update.
    admit: takes a client's account of its visit, or raises Refused. fail, refuse: told why a client
    is out."""

    round: Round
    clients: Clients
    download: Cost
    size: int
    admit: Callable[[int, Mapping[str, Any]], None]
    fail: Tell
    refuse: Tell

    def __post_init__(self) -> None:
        self.bytes_up: dict[int, int] = {}  # by client, of all its messages
        self.withheld: dict[int, str] = {}  # by client that handed out no shares: why
        self._client_of = self.clients.roster.client_of
        self._keys: set[bytes] = set()
        self._began = time.monotonic()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """The replies of one stage that are as they should be."""
        waiting, good, arrivals = list(messages), list[Message](), count(1)
        stage = str(_record(waiting[0])[Key.STAGE])
        deadline = self._began + UNTIL[stage] * self.clients.execution.round_timeout
        of = len(waiting)

        def arrived(reply: Message) -> None:
            self.clients.notice(reply)
            done = min(next(arrivals), of) if stage == Stage.COLLECT_MASKED_VECTORS else 0
            self.clients.run.progress(phase="training", round=self.round.number, done=done, of=of)

        reasons: dict[int, str] = {}
        for last in (False, True):
            left = max(1.0, deadline - time.monotonic())
            asked = [self._fresh(message, stage, left) for message in waiting]
            waiting = []
            for question, answer in exchange(
                self.clients.roster.grid, asked, left, self.clients.refuse, arrived
            ):
                client = self._client_of[question.metadata.dst_node_id]
                try:
                    if wire.unanswered(answer) and (answer is None or time.monotonic() >= deadline):
                        raise wire.Failed(self._too_late(stage))
                    reply = wire.answered(answer)
                    self._check(stage, client, question, reply)
                    good.append(reply)
                except wire.Failed as failure:
                    # a guard that has refused has no keys any more
                    reason = reasons.setdefault(client, str(failure))
                    if last or answer is None or time.monotonic() >= deadline:
                        self._out(self.fail, stage, client, reason)
                    else:
                        text = "round %d: client %d failed (%s); it is asked once more"
                        logger.warning(text, self.round.number, client, failure)
                        waiting.append(question)
                except Refused as refusal:
                    self._out(self.refuse, stage, client, str(refusal))
            if not waiting:
                break
        return good

    def _too_late(self, stage: str) -> str:
        share, timeout = UNTIL[stage], self.clients.execution.round_timeout
        return (
            f"no answer in the round's first {share * timeout:g} s for {_FOR[stage]}"
            f" ({100 * share:g} % of round-timeout); raise round-timeout"
        )

    def _fresh(self, message: Message, stage: str, ttl: float) -> Message:
        """The workflow's message with an end to its life, counted as sent."""
        client, content = self._client_of[message.metadata.dst_node_id], message.content
        self.round.send(client, Cost(wire_down=wire.size_of(content)))
        if stage == Stage.COLLECT_MASKED_VECTORS:
            self.round.send(client, self.download)
        return wire.train_with(content, message.metadata.dst_node_id, self.round.number, ttl)

    def _out(self, tell: Tell, stage: str, client: int, reason: str) -> None:
        if stage == Stage.UNMASK:  # its upload counts: there are others who hold the shares
            self.withheld[client] = reason
            logger.warning(
                "round %d: client %d hands out no shares: %s", self.round.number, client, reason
            )
        else:
            tell(self.round, client, reason)

    def _check(self, stage: str, client: int, question: Message, reply: Message) -> None:
        """Raises Refused for a reply that would make the workflow or other clients fail, or
        wire.Failed for one that says a failure."""
        try:
            size = wire.size_of(reply.content)
            if size > LARGEST_METRICS + 4 * self.size:
                raise Refused(f"its message has {size} bytes")
            said, asked = _record(reply), _record(question)
            if stage == Stage.SETUP:
                self._check_keys(said)
            elif stage == Stage.SHARE_KEYS:
                neighbours = [
                    int(name)
                    for name in asked
                    if name != Key.STAGE and int(name) != question.metadata.dst_node_id
                ]
                if sorted(said[Key.DESTINATION_LIST]) != sorted(neighbours):
                    raise Refused(
                        f"its shares are for the nodes {short(said[Key.DESTINATION_LIST])}, asked"
                        " was for its neighbours"
                    )
                _check_blobs("encrypted shares", said[Key.CIPHERTEXT_LIST], len(neighbours))
            elif stage == Stage.COLLECT_MASKED_VECTORS:
                self._check_masked(said, reply)
                self.admit(client, wire.read_reply(reply).metrics)
            else:
                owners = [*asked[Key.ACTIVE_NODE_ID_LIST], *asked[Key.DEAD_NODE_ID_LIST]]
                if list(said[Key.NODE_ID_LIST]) != owners:
                    raise Refused(
                        f"its shares are of the nodes {short(said[Key.NODE_ID_LIST])}, asked was"
                        " for others'"
                    )
                _check_blobs("shares", said[Key.SHARE_LIST], len(owners))
        except (Refused, wire.Failed):
            raise
        except Exception as error:  # whatever a stranger's message leads to
            raise Refused(f"a malformed reply ({short(brief(error))})") from None
        self.bytes_up[client] = self.bytes_up.get(client, 0) + size

    def _check_keys(self, said: MutableMapping[str, Any]) -> None:
        keys = [said[Key.PUBLIC_KEY_1], said[Key.PUBLIC_KEY_2]]
        _check_blobs("public keys", keys, 2)
        if not all(isinstance(bytes_to_public_key(key).curve, SECP384R1) for key in keys):
            raise Refused("its public keys are of another curve than P-384")
        if len(set(keys)) < 2 or self._keys.intersection(keys):
            raise Refused("its public keys are there twice")  # every client would refuse them all
        self._keys.update(keys)

    def _check_masked(self, said: MutableMapping[str, Any], reply: Message) -> None:
        """A weight, a vector of our size and the figures, in 4 bytes an element; afterwards they
        are in the 8 that the workflow adds up."""
        if any(reply.content.array_records.values()):
            raise Refused("its upload is not masked")
        largest, sizes = 4 * max(self.size, SIZE), (1, self.size, SIZE)
        found = [wire.decode(blob, largest) for blob in said[Key.MASKED_PARAMETERS]]
        if [(a.shape, a.dtype) for a in found] != [((n,), np.dtype("<u4")) for n in sizes]:
            shapes = short([f"{a.dtype} {list(a.shape)}" for a in found])
            raise Refused(f"its masked arrays are {shapes}, expected uint32 of {sizes} elements")
        said[Key.MASKED_PARAMETERS] = ndarrays_to_parameters(
            [a.astype(np.int64) for a in found]
        ).tensors


def _record(message: Message) -> MutableMapping[str, Any]:
    record = secagg_record(message.content)
    if record is None:
        raise Refused("it says nothing of secure aggregation")
    return record


def _check_blobs(what: str, blobs: Sequence[Any], expected: int) -> None:
    if len(blobs) != expected or not all(
        isinstance(blob, bytes) and len(blob) <= _LONGEST for blob in blobs
    ):
        raise Refused(
            f"its {what} are {short([len(blob) for blob in blobs])} bytes, expected {expected} of"
            f" at most {_LONGEST}"
        )
