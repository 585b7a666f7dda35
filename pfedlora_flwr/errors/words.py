"""Names and values, as messages write them."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST = 200


def some(names: Sequence[str], most: int) -> str:
    """The first `most` names, as a message lists them, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def counted(number: int, one: str) -> str:
    """`1 client`, `10 clients`."""
    return f"{number} {one}{'' if number == 1 else 's'}"


def first_line(text: str) -> str:
    """What another library says, in short: the first line, at most 200 characters."""
    return next(iter(text.splitlines()), "")[:_LONGEST]


def kind(value: object) -> str:
    """What a value is that is none of what was expected."""
    return "None" if value is None else type(value).__name__
