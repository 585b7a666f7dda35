"""What there is to choose from: keys, methods, datasets. No question imports PyTorch, since
`known.json` is written from the code by `make docs`."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from pfedlora_flwr.errors import UserError, meant

Row = dict[str, Any]


def find_keys(word: str = "") -> list[Row]:
    """A row a key: `key`, `part` (a section, a method, the Experiment or the Execution), `default`,
    `allowed`, `meaning`. word: only those in whose name, part or meaning it stands, with `_`, `-`
    or `.`. Raises UserError where it stands in none."""
    every, wanted = _known()["keys"], _plain(word)
    parts = ("key", "part", "meaning")
    found = [row for row in every if wanted in _plain(" ".join(row[name] for name in parts))]
    if not found:
        told = meant(word, [row["key"] for row in every], "pfedlora keys lists all")
        raise UserError(f"no key has {word!r} in its name or meaning; {told}")
    return found


def methods() -> list[Row]:
    """A row a method: `method` (the key's value), `title`, `idea`, `shares`, `assumes`, `paper`."""
    return _known()["methods"]


def datasets() -> list[Row]:
    """A row a kind of dataset: `dataset` (the key's value), `classes`, `samples`, `about`, `keys`
    (those that say how it is read)."""
    return _known()["datasets"]


def _plain(text: str) -> str:
    return re.sub(r"[._-]", "_", text.lower())


@cache
def _known() -> dict[str, list[Row]]:
    file = Path(__file__).with_name("known.json")
    return dict(json.loads(file.read_text(encoding="utf-8")))
