"""The numbers of a node-config; its keys are those of site/gate.py."""

from __future__ import annotations

from collections.abc import Mapping

from pfedlora_flwr.errors import UserError


def number_in(node_config: Mapping[str, object], name: str) -> int | None:
    """A number that the node-config holds, as itself or as a text; None where it has none. Raises
    UserError for what is no number from 0 on."""
    if name not in node_config:
        return None
    text = str(value := node_config[name])
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{name} is {value!r} in the node-config; allowed: an integer from 0 on")
    return int(text)
