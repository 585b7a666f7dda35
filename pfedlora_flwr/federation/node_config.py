"""The keys of a node-config, and its numbers. A key that is misspelt would be a setting of the site
that nobody heeds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from flwr.app import Context, Error, Message

from pfedlora_flwr.errors import UserError, meant, permissions
from pfedlora_flwr.federation.flower_compat import ClientAppCallable, ErrorCode, Mod
from pfedlora_flwr.federation.nodes import in_simulation

logger = logging.getLogger(__name__)
KEYS = (
    "state-path",
    "dataset",
    "partition-id",
    "num-partitions",
    "data-path",
    "secagg",
    "scores",
    *permissions.NODE_KEYS,
)
DEMANDS = ("dp", "epsilon-cap", "runs-cap")
"""Which there are (docs/deployment.md); DEMANDS are those of federation/demands.py."""


def permitted(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod of the ClientApp, outside of all others: a run names on this node what the node-config
    allows, and in a simulation on the user's own machine anything."""
    try:
        simulated = permissions.said_own_machine() or in_simulation()
        allowed = permissions.ANYTHING if simulated else permissions.of_node(context.node_config)
    except UserError as error:
        return _refusal(message, str(error))
    try:
        with permissions.held(allowed):
            return call_next(message, context)
    except permissions.NotAllowed as error:
        return _refusal(message, str(error))


def known_keys(more: Iterable[str]) -> Mod:
    """A mod of the ClientApp: a node whose node-config has keys other than KEYS and `more` takes
    part in no run, and says why."""
    allowed = (*KEYS, *DEMANDS, *more)

    def check(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if why := _unknown(context.node_config, allowed):
            return _refusal(message, why)
        return call_next(message, context)

    return check


def _refusal(message: Message, why: str) -> Message:
    """The answer of a node that does not do what it is asked; its log says why, too."""
    logger.warning("%s", why)
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=message)


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
