"""The update that a client has masked, and the clients for which it has revealed its shares, by
round: only one of each.

The sums of two sets of clients in one round differ by single updates, and so do those of one set of
which one has masked another update."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path

from filelock import FileLock
from flwr.app import ConfigRecord, Context

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.messages import folder_name
from pfedlora_flwr.files import write_atomically

_CURRENT, _UNMASKED = "pfedlora_masked_round", "pfedlora_unmasked"
"""Our records in the context's state."""
ROUNDS = 100
"""How many a node remembers; it takes part in none before them. A run that is resumed goes back by
one or two."""


def begin(context: Context, token: str, round: int, masked: bytes) -> None:
    """The client masks its update of this round, and hands out the next shares for it. Raises
    UserError where it has masked another.

    masked: all that the sum depends on. It counts from here on: others hold this client's shares,
    and may unmask it without asking it."""
    context.state.config_records[_CURRENT] = ConfigRecord(
        {"token": folder_name(token), "round": round}
    )
    if not _is_first_or_equal(context, "masked", masked):
        raise UserError(
            f"this node has already masked another update in round {round}: two such sums reveal it"
        )


def hand_out(context: Context, nodes: Iterable[int]) -> None:
    """Remembers for which uploads, by their nodes, shares are handed out. Raises UserError if
    they were for others before."""
    if (current := context.state.config_records.get(_CURRENT)) is None:
        raise UserError("the server skips the stage collect_masked_vectors")
    if not _is_first_or_equal(
        context, "handed out for", " ".join(map(str, sorted(nodes))).encode()
    ):
        round = str(current["round"])
        raise UserError(
            f"this node has handed out its shares of round {round} for other nodes (one that was"
            " registered again is another): two such sums reveal single updates"
        )


def _is_first_or_equal(context: Context, what: str, value: bytes) -> bool:
    """Whether the current round has had no other value of this sort. The first is remembered, as
    its digest.

    A node with a `state-path`, as every real one has, remembers on disk; a simulation's in its
    context, which a resumed run does not have."""
    records = context.state.config_records
    token = str(records[_CURRENT]["token"])
    round = str(records[_CURRENT]["round"])
    found = sha256(value).hexdigest()
    file, kept = _file(context, token), records.get(_UNMASKED, ConfigRecord())
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
    # an answer to an earlier round may go on beside this one
    with FileLock(f"{file}.lock") if file else nullcontext():
        known: dict[str, dict[str, str]] = json.loads(
            file.read_text() if file and file.exists() else str(kept.get(token, "{}"))
        )
        if len(known) >= ROUNDS and int(round) < (oldest := min(map(int, known))):
            raise UserError(
                f"the server asks for round {round}, and this node remembers its masked rounds"
                f" from {oldest} on"
            )
        if known.setdefault(round, {}).setdefault(what, found) != found:
            return False
        text = json.dumps({name: known[name] for name in sorted(known, key=int)[-ROUNDS:]})
        if file:
            write_atomically(file, text.encode())
        else:
            kept[token] = text
            records[_UNMASKED] = kept
    return True


def _file(context: Context, token: str) -> Path | None:
    """Beside the run's models on a real node: one file a node, whatever client the server calls
    it."""
    config = context.node_config
    if "state-path" not in config:
        return None
    name = (
        f"unmasked-{config['partition-id']}.json" if "partition-id" in config else "unmasked.json"
    )
    return Path(str(config["state-path"])).expanduser() / token / name
