"""Names and values, as messages write them."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence

_JOINERS = "\u200c\u200d"
_TWINS = str.maketrans("аеорсухіјѕԁһԛԝο‐‑‒–—−’", "aeopcyxijsdhqwo------'")
"""Characters, and those of ASCII that they look like."""
_LONGEST, _LONGEST_LIST, _LONGEST_LINE = 200, 400, 1000


def some(names: Sequence[str], most: int = 10) -> str:
    """The first `most` names, as a message lists them, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def meant(name: str, known: Iterable[str], otherwise: str, alike: float = 0.6) -> str:
    """The known name that an unknown one is probably meant for, as a question; else `otherwise`.
    alike: how alike the two are at least, from 0 to 1."""
    near = difflib.get_close_matches(name, known, 1, alike)
    return f"did you mean {near[0]!r}?" if near else otherwise


def looks(name: str) -> str:
    """What names have in common that look alike: they differ by spaces, capitals, Unicode forms,
    what is not shown, or letters of another script."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    shown = "".join(c for c in plain if unicodedata.category(c) != "Cf").translate(_TWINS)
    return " ".join(shown.split())


def apart(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """The names as they are; where one looks as one of the others does, all with what cannot be
    seen written out."""
    alike = {*map(looks, names)} & {*map(looks, others)} - {*names}
    return [*map(ascii if alike else str, names)]


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


def differing(what: str, its: Sequence[str], who: str, others: Sequence[str]) -> str:
    """A stranger's names beside others: all, or from the first one that differs on where a line has
    no room for all."""
    both = list(zip(its, others, strict=False))
    alike = next((i for i, (a, b) in enumerate(both) if a != b), len(both))
    start = 0 if max(len(repr(names)) for names in (its, others)) <= _LONGEST_LIST else alike
    found, expected = (short(list(names[start:]), _LONGEST_LIST) for names in (its, others))
    place = f" from number {start + 1} on" if start else ""
    return f"its {what}{place} are {found}, {who} {expected}"


def printable(text: str) -> str:
    """The text with a blank for each character that a terminal, or a reader of lines, would act on,
    and for each that no file can hold. What joins letters, as some scripts need it, stays."""
    return "".join(
        c if c.isprintable() or unicodedata.category(c) == "Zs" or c in _JOINERS else " "
        for c in text
    )


def as_line(text: str) -> str:
    """A reason in which there may be a stranger's words: printable, and at most 1000 characters."""
    text = printable(text)
    return text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "…"


def kind(value: object) -> str:
    """What a value is that is none of what was expected."""
    return "None" if value is None else type(value).__name__
