"""The informative lines of a log or a traceback."""

from __future__ import annotations

import re

from pfedlora_flwr.errors.words import printable

_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_FRAME = " │╰╭─╮╯"
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Failed|Refused)\b.*: \S")

_LINK = "The above exception was the direct cause of the following exception:"


def lines_of(text: str) -> list[str]:
    """The lines that say something, without frames and without what a terminal would act on."""
    lines = (printable(_COLOUR.sub("", line)).strip(_FRAME) for line in text.splitlines())
    return [line for line in lines if line]


def exception_line(text: str) -> str | None:
    """The last line that names an exception, as a traceback ends; None if there is none."""
    return next((line for line in reversed(lines_of(text)) if _EXCEPTION.match(line)), None)


def cause_line(text: str) -> str | None:
    """The same of the first exception in its chain of causes."""
    links = text.split(_LINK)
    while len(links) > 1 and exception_line(links[-1]):
        links.pop()
    return exception_line(links[-1]) or exception_line(text)
