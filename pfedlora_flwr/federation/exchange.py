"""Sends messages and collects replies, with a bounded wait. Duplicate, unrequested and foreign
replies are refused."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from pfedlora_flwr.errors import short

logger = logging.getLogger(__name__)
POLL, SLOW_POLL = 0.05, 1.0
"""Seconds between two looks, at first and after a while."""
_HANDED_OUT = 0.15
"""Seconds in which a simulation surely hands out what has been sent (it looks every 0.1)."""
Refuse = Callable[[str], None]


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    timeout: float,
    refuse: Refuse,
    arrived: Callable[[Message], None] = lambda reply: None,
    first: int = 0,
    sent: Sequence[Message] = (),
    enough: Callable[[], bool] = lambda: False,
) -> list[tuple[Message, Message | None]]:
    """Sends the messages and waits at most `timeout` seconds; each message with its reply, or None
    where none came.

    A reply that was not asked for, comes twice or comes from another node is refused; the wait for
    the right one goes on.
    first: send so many ahead of the others. A simulation hands out what it finds in the order of
    its nodes, so this is how long visits start before short ones and no actor is left with a long
    one at the end. sent: messages that an earlier call has sent and that are without a reply: it is
    waited for, too, and handed to `arrived` alone. enough: whether the wait is to end, looked at
    once half of it is over."""
    if 0 < first < len(messages):
        grid.push_messages(messages[:first])
        time.sleep(_HANDED_OUT)
        grid.push_messages(messages[first:])
    else:
        grid.push_messages(messages)
    asked = {m.metadata.message_id: m for m in (*messages, *sent)}
    replies: dict[str, Message] = {}
    last = time.monotonic()
    half, deadline = last + timeout / 2, last + timeout
    while len(replies) < len(asked) and time.monotonic() < deadline:
        if time.monotonic() >= half and enough():
            break
        came = _pull(grid, [i for i in asked if i not in replies])
        for reply in came:
            about, sender = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            if about not in asked:
                refuse(
                    f"a reply of node {sender} is refused: it answers a message that was not sent"
                    " in this round"
                )
            elif about in replies:
                refuse(f"a reply of node {sender} is refused: it is a duplicate")
            elif not reply.has_error() and sender != asked[about].metadata.dst_node_id:
                refuse(
                    f"a reply of node {sender} is refused: node {asked[about].metadata.dst_node_id}"
                    " was asked"
                )
            else:
                replies[about] = reply  # an error reply has no other sign of whose it is
                arrived(reply)
        now = time.monotonic()
        last = now if came else last
        if len(replies) < len(asked):
            # the wait for the last reply stays a small share of it
            time.sleep(min(POLL / 2 + (now - last) / 50, SLOW_POLL / 2))
    return [(m, replies.get(m.metadata.message_id)) for m in messages]


def _pull(grid: Grid, ids: list[str]) -> list[Message]:
    """The replies that are there. One that cannot be read must not take the others with it."""
    try:
        return list(grid.pull_messages(ids))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("a reply cannot be read (%s: %s)", type(error).__name__, short(str(error)))
    found: list[Message] = []
    for one in ids:
        try:
            found += grid.pull_messages([one])
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # its timeout is what is left to tell this client's failure
    return found
