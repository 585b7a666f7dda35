"""For whom a client has handed out its shares, by round: the sums of two sets of clients in one round differ by single updates."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from flwr.app import ConfigRecord, Context

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.messages import folder_name
from pfedlora_flwr.files import write_atomically

_CURRENT, _UNMASKED = "pfedlora_masked_round", "pfedlora_unmasked"
"""Our records in the context's state."""


def begin(context: Context, token: str, round: int) -> None:
    """The client masks its update of this round, and hands out the next shares for it."""
    context.state.config_records[_CURRENT] = ConfigRecord({"token": folder_name(token), "round": round})


def hand_out(context: Context, nodes: Iterable[int]) -> None:
    """Remembers for which uploads, by their nodes, shares are handed out. Raises UserError where they were for others before.

    A node with a `state-path` remembers on disk; another one in its context, for as long as its SuperNode runs.
    """
    if (current := context.state.config_records.get(_CURRENT)) is None:
        raise UserError("the server leaves out a stage")
    token, round = str(current["token"]), str(current["round"])
    file, kept = _file(context, token), context.state.config_records.get(_UNMASKED, ConfigRecord())
    known = json.loads(file.read_text()) if file and file.exists() else {}
    found = sha256(" ".join(map(str, sorted(nodes))).encode()).hexdigest()
    if known.get(round, found) != found or kept.get(f"{token}/{round}", found) != found:
        raise UserError(f"this node has handed out its shares of round {round} for other clients: two such sums show single updates")
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps({**known, round: found}).encode())
    else:
        kept[f"{token}/{round}"] = found
        context.state.config_records[_UNMASKED] = kept


def _file(context: Context, token: str) -> Path | None:
    """Beside the run's models on a real node: one file a node, whatever client the server calls it."""
    config = context.node_config
    if "state-path" not in config:
        return None
    name = f"unmasked-{config['partition-id']}.json" if "partition-id" in config else "unmasked.json"
    return Path(str(config["state-path"])).expanduser() / token / name
