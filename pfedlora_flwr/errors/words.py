"""Names and values, as messages write them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_LONGEST, _LONGEST_LINE = 200, 1000


def some(names: Sequence[str], most: int) -> str:
    """The first `most` names, as a message lists them, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def counted(number: int, one: str) -> str:
    """`1 client`, `10 clients`."""
    return f"{number} {one}{'' if number == 1 else 's'}"


def first_line(text: str) -> str:
    """What another library says, in short: the first line, at most 200 characters."""
    return next(iter(text.splitlines()), "")[:_LONGEST]


def short(value: object, most: int = _LONGEST) -> str:
    """A stranger's value for a line of the log: cut, and its control characters escaped."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**100 else "a huge number"
    return text if len(text) <= most else text[:most] + "…"


def printable(text: str) -> str:
    """The text with a blank for each character that a terminal, or a reader of lines, would act on,
    and for each that no file can hold."""
    return "".join(c if c.isprintable() or unicodedata.category(c) == "Zs" else " " for c in text)


def as_line(text: str) -> str:
    """A reason in which there may be a stranger's words: printable, and at most 1000 characters."""
    text = printable(text)
    return text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "…"


def kind(value: object) -> str:
    """What a value is that is none of what was expected."""
    return "None" if value is None else type(value).__name__
