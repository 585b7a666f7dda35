"""The names of a run's sites, under which the SuperLink knows their nodes. They are foreign text,
and say in a user's words which client is meant; the numbers stay underneath."""

from __future__ import annotations

from pfedlora_flwr.errors import UserError, meant, printable, some
from pfedlora_flwr.runs.layout import RunFiles
from pfedlora_flwr.runs.records import read_json


def names_told(run: RunFiles) -> dict[int, str]:
    """By client, its site's name; none where nodes have none, or the run hides its clients."""
    told = read_json(run.sites_file) or {}
    return {int(k): printable(str(name)).strip() for k, name in told.get("names", {}).items()}


def client_of(run: RunFiles, said: str) -> int:
    """The number of the client that is meant by a number or a site's name. Raises UserError for
    what means none, or two."""
    names = names_told(run)
    found = {client for client, name in names.items() if name == said}
    found |= {int(said)} if said.isascii() and said.isdigit() and len(said) < 10 else set()
    if len(found) == 1:
        return found.pop()
    if found:
        both = " and ".join(f"client {client}" for client in sorted(found))
        raise UserError(f"{said!r} means {both} of {run.path}: give what means one of them")
    known = some([repr(name) for name in names.values()])
    allowed = f"allowed: a client's number, or {known or 'a name, and its sites have none'}"
    raise UserError(f"{said!r} is no site of {run.path}; {meant(said, names.values(), allowed)}")
