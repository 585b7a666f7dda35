"""Models, methods and datasets that the Python API was given as objects, and that no import path
leads to.

In a run's keys such an object is `given.xHASH.MODULE:NAME`, where HASH is of its source or, of
arrays, of their bytes. It is found under this name while `available` lasts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pfedlora_flwr.errors import UserError

PREFIX = "given."
UNNAMED = re.escape(PREFIX) + r"x[0-9a-f]+[\w.]*"
"""What stands before the name of an object, and a mark, as a pattern."""
_AVAILABLE: dict[str, Any] = {}


@contextmanager
def available(objects: Mapping[str, Any]) -> Iterator[None]:
    """Within it these objects are found by their names."""
    added = {name: found for name, found in objects.items() if name not in _AVAILABLE}
    _AVAILABLE.update(added)
    try:
        yield
    finally:
        for name in added:
            del _AVAILABLE[name]


def is_given(name: str) -> bool:
    """Whether the name, of an object or of its module, is that of a given object."""
    return name.startswith(PREFIX)


def find(name: str, what: str) -> Any:
    """The object of this name. Raises UserError where it has not been given.

    what: model, method or dataset."""
    if name not in _AVAILABLE:
        argument = "models" if what == "model" else what
        raise UserError(
            f"{what} {name!r} was given as an object in Python, and has no import path: give it"
            f" again, pfedlora_flwr.load(…, {argument}=…)"
        )
    return _AVAILABLE[name]
