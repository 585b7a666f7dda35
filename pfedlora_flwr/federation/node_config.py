"""The keys of a node-config. One that is misspelt would be a setting of the site that nobody
heeds."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping

from flwr.app import Context, Error, Message

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.flower_compat import ClientAppCallable, ErrorCode, Mod

logger = logging.getLogger(__name__)
KEYS = ("state-path", "dataset", "partition-id", "num-partitions", "data-path", "secagg")
"""Which there are (docs/deployment.md)."""


def known_keys(more: Iterable[str]) -> Mod:
    """A mod of the ClientApp: a node whose node-config has keys other than KEYS and `more` takes
    part in no run, and says why."""
    allowed = (*KEYS, *more)

    def check(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            _check(context.node_config, allowed)
        except UserError as error:
            logger.warning("%s", error)
            refusal = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error))
            return Message(refusal, reply_to=message)
        return call_next(message, context)

    return check


def _check(node_config: Mapping[str, object], allowed: tuple[str, ...]) -> None:
    for name in node_config:
        if name not in allowed:
            near = difflib.get_close_matches(name.lower(), allowed, 1)
            meant = f"; did you mean {near[0]!r}?" if near else f"; allowed: {', '.join(allowed)}"
            raise UserError(f"unknown key {name!r} in the node-config{meant}")
