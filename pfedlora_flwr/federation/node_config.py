"""The keys of a node-config, and its numbers. A key that is misspelt would be a setting of the site
that nobody heeds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from flwr.app import Context, Error, Message

from pfedlora_flwr.errors import UserError, meant
from pfedlora_flwr.federation.flower_compat import ClientAppCallable, ErrorCode, Mod

logger = logging.getLogger(__name__)
KEYS = ("state-path", "dataset", "partition-id", "num-partitions", "data-path", "secagg", "scores")
"""Which there are (docs/deployment.md)."""


def known_keys(more: Iterable[str]) -> Mod:
    """A mod of the ClientApp: a node whose node-config has keys other than KEYS and `more` takes
    part in no run, and says why."""
    allowed = (*KEYS, *more)

    def check(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if why := _unknown(context.node_config, allowed):
            logger.warning("%s", why)
            refusal = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why)
            return Message(refusal, reply_to=message)
        return call_next(message, context)

    return check


def number_in(node_config: Mapping[str, object], name: str) -> int | None:
    """A number that the node-config holds, as itself or as a text; None where it has none. Raises
    UserError for what is no number from 0 on."""
    if name not in node_config:
        return None
    text = str(value := node_config[name])
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{name} is {value!r} in the node-config; allowed: an integer from 0 on")
    return int(text)


def _unknown(node_config: Mapping[str, object], allowed: tuple[str, ...]) -> str:
    """A line on the first key that is none of these; empty: all are."""
    for name in node_config:
        if name not in allowed:
            told = meant(name.lower(), allowed, f"allowed: {', '.join(allowed)}")
            return f"unknown key {name!r} in the node-config; {told}"
    return ""
