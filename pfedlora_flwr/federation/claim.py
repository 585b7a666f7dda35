"""The answer to the question who a node is, and what of that is believed; its keys are the names of
the fields, as in `messages.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pfedlora_flwr.data.local import more_classes
from pfedlora_flwr.errors import printable, short
from pfedlora_flwr.federation.messages import LONGEST_WORD, withheld_in
from pfedlora_flwr.files import from_json
from pfedlora_flwr.runs.provenance import TOLD, told_versions
from pfedlora_flwr.version import WIRE, __version__

_LONGEST_BASE = 4096
_MOST_COLUMNS = 10**5
_LONGEST_NAME, _LONGEST_NAMES = 1000, 2**24
"""Characters of a class or a column, and of all classes or columns as they travel."""
_LONGEST_VERSION = 60


@dataclass(frozen=True)
class Claim:
    """Who a node says it is.

    partition_id: its client's number, -1 where it goes by `name`. partition: the fingerprint of the
    partition that its data comes from, or `own`. classes: the names of its own data's classes, in
    order. columns: of its features, where it has a table of its own. base: what its weights are
    known by, where LoRA is exchanged inside them; empty where there are none of others. data: what
    its part's dataset is known by (`Site.data`). withheld: the rules `egress.…` by which its site
    keeps something back. versions: of its packages, which must go with the server's. wire: the
    format of its messages."""

    partition_id: int
    partition: str
    classes: list[str]
    name: str
    columns: list[str]
    base: str
    data: str = ""
    withheld: list[str] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    wire: int = WIRE

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, Any], clients: int, most_classes: int) -> Claim:
        """A node's claim in a run of `clients` whose models tell `most_classes` apart. Raises
        ValueError for one that no client of ours makes."""
        number, partition = metrics.get("partition_id"), metrics.get("partition")
        name, base = metrics.get("name"), metrics.get("base", "")
        data = metrics.get("data", "")
        try:
            told = metrics["classes"], metrics.get("columns", "[]")
            if max(map(len, told)) > _LONGEST_NAMES:
                raise ValueError
            classes, columns = map(from_json, told)
        except (KeyError, TypeError, ValueError):
            classes = columns = None
        lists = isinstance(classes, list) and isinstance(columns, list)
        if type(number) is not int or not isinstance(partition, str) or not lists:
            raise ValueError("its answer is not one of this app's clients'")
        if not (isinstance(name, str) and isinstance(base, str) and isinstance(data, str)):
            raise ValueError("its answer is not one of this app's clients'")
        versions = _versions(metrics.get("versions", "{}"))
        if (wire := metrics.get("wire")) != WIRE:
            theirs = versions.get("pfedlora-flwr", "an older version")
            raise ValueError(
                f"its messages have format {short(wire)} (pfedlora-flwr: {theirs}), this"
                f" server's {WIRE} ({__version__}): install the same version on both"
            )
        if number >= clients or (number < 0 and not name):
            raise ValueError(f"partition-id is {number}; allowed: 0 to {clients - 1}")
        named = [classes, columns]
        if (
            not all(isinstance(c, str) for names in named for c in names)
            or len(columns) > _MOST_COLUMNS
            or max(len(name), len(partition), len(data)) > LONGEST_WORD
            or len(base) > _LONGEST_BASE
        ):
            raise ValueError("its name, classes, columns or base are none that a client gives")
        if (longest := max((len(c) for names in named for c in names), default=0)) > _LONGEST_NAME:
            said = f"a name of its classes or columns has {longest} characters"
            raise ValueError(f"{said}; allowed: {_LONGEST_NAME}")
        if len(classes) > most_classes:
            raise ValueError(f"its data {more_classes(len(classes), most_classes)}")
        withheld = withheld_in(metrics)
        return cls(number, partition, classes, name, columns, base, data, withheld, versions)


def _versions(text: object) -> dict[str, str]:
    """What a node says of its packages, by name. Raises ValueError for what no client says."""
    try:
        found = from_json(str(text)[:_LONGEST_BASE])
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ValueError("its versions are none that a client tells")
    return {name: printable(found[name])[:_LONGEST_VERSION] for name in TOLD if name in found}


def differing_versions(told: Mapping[str, str]) -> str:
    """The packages of which a node has another minor version than this process, with both; empty
    if there are none."""
    here = told_versions()
    return ", ".join(
        f"{name} {version}, the server {here[name]}"
        for name, version in told.items()
        if version.split(".")[:2] != here[name].split(".")[:2]
    )
