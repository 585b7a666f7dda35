"""The gate of a node: the outermost mod of its ClientApp. A message comes in only if the node's
rules admit its run, and a reply goes out with what they allow alone, once it is in the site's log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message

from pfedlora_flwr.errors import UserError, as_line, brief, meant, permissions
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.federation import warm, wire
from pfedlora_flwr.federation.flower_compat import ClientAppCallable, ErrorCode, Mod
from pfedlora_flwr.federation.nodes import in_simulation
from pfedlora_flwr.site.egress import NEUTRAL, limit
from pfedlora_flwr.site.log import Log, shapes_of
from pfedlora_flwr.site.policy import NODE_KEYS, POLICY, Policy, held

logger = logging.getLogger(__name__)
KEYS = (
    *("state-path", "dataset", "partition-id", "num-partitions", "data-path", "class-map"),
    *(permissions.ANCHORS, POLICY, *NODE_KEYS, *warm.KEYS),
)
"""The keys of a node-config (docs/deployment.md)."""


def gate(config_of: Callable[[Context], RunConfig], node_keys: Iterable[str] = ()) -> Mod:
    """The mod.

    config_of: the run's keys, from the context. node_keys: keys of the node-config beside KEYS. A
    key that is misspelt would be a rule of the site that nobody heeds."""
    known = (*KEYS, *node_keys)

    def check(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        config = context.node_config
        log = Log(Path(str(config["state-path"])).expanduser()) if "state-path" in config else None
        entry: dict[str, Any] = {
            "run": context.run_id,
            "kind": message.metadata.message_type,
            "round": as_line(message.metadata.group_id),
        }
        reply = None
        try:
            _check_names(config, known)
            warm.idle_seconds(config)
            policy = Policy.of_node(config)
            entry["policy"] = policy.sha256
            simulated = permissions.said_own_machine() or in_simulation()
            allowed = permissions.ANYTHING if simulated else policy.permissions()
            with permissions.held(allowed), held(policy):
                reply, more = _answer(message, context, call_next, policy, config_of, log)
            entry |= more
        except UserError as error:
            entry["refused"] = str(error)
        except Exception as error:
            if POLICY not in config:
                raise
            logger.exception("the client failed")
            entry["refused"] = brief(error)
        if reply is not None and not reply.has_error():
            entry |= shapes_of(reply.content)
        if "refused" in entry:
            entry["refused"] = as_line(entry["refused"])
        try:
            if log:
                log.append(entry)
        except OSError as error:
            why = f"its log, egress.jsonl, cannot be written ({error.strerror}): it sends nothing"
            entry, reply = {"refused": why}, None
        if "refused" in entry:
            logger.warning("%s", entry["refused"])
        if reply is None or reply.has_error():
            told = NEUTRAL if POLICY in config else str(entry["refused"])
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, told), reply_to=message)
        return reply

    return check


def _answer(
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    policy: Policy,
    config_of: Callable[[Context], RunConfig],
    log: Log | None,
) -> tuple[Message, dict[str, Any]]:
    """The reply to a message that the rules admit, and what the log is to say of the run. Raises
    UserError with the reason where they do not."""
    config, kind = config_of(context), message.metadata.message_type
    asked = wire.asked_in(message.content) if message.has_content() else {}
    for why in policy.objections(config, asked, kind):
        raise UserError(why)
    upload = kind == wire.TRAIN and "token" in asked
    token = str(asked.get("token", ""))
    before = log.left(context.run_id, token, policy, uploads=upload) if log else 0
    reply = call_next(message, context)
    why = limit(policy, reply)
    size = 0 if reply.has_error() else wire.size_of(reply.content)
    if policy.bytes is not None and before + size > policy.bytes:
        raise UserError(f"bytes is {policy.bytes} here, and this reply would make {before + size}")
    e = config.experiment
    protections = (demand.protection(e, message) for demand in policy.demands())
    more = {
        "method": e.method,
        "protection": [*filter(None, protections)],
        "upload": upload,
        **({"token": token} if token else {}),
    }
    if why:
        more["refused"] = why
    if log:
        for demand in policy.demands():
            more |= demand.logged(e, log.path.parent)
    return reply, more


def _check_names(node_config: Mapping[str, object], known: tuple[str, ...]) -> None:
    for name in node_config:
        if name not in known:
            told = meant(name.lower(), known, f"allowed: {', '.join(known)}")
            raise UserError(f"unknown key {name!r} in the node-config; {told}")
