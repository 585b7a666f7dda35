"""Texts and tables as a PDF for printing, by Matplotlib: A4 across, in letters of one width."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any

from pfedlora_flwr.report.style import fonts
from pfedlora_flwr.report.table import Table

_LINE, _CELL = 150, 40
"""Letters of a line of text, and of a cell before it goes on below."""
_WIDE, _HIGH, _MARGIN = 842.0, 595.0, 36.0  # points
_LARGEST = 8.0  # points


def pdf(title: str, sections: Sequence[tuple[str, Sequence[str] | Table]]) -> bytes:
    """The file. sections: headings, and paragraphs or a table below each. The letters are as large
    as the longest line allows."""
    import matplotlib
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    lines = [line for heading, inside in sections for line in (*below(heading, inside), "")]
    size = min(_LARGEST, (_WIDE - 2 * _MARGIN) / (0.61 * max(map(len, lines))))
    most = int((_HIGH - 3 * _MARGIN) / (1.3 * size))
    out, starts = io.BytesIO(), range(0, len(lines), most)
    left, top = _MARGIN / _WIDE, 1 - _MARGIN / _HIGH
    settings: dict[Any, Any] = {"font.family": fonts("DejaVu Sans Mono"), "pdf.fonttype": 42}
    with (
        matplotlib.rc_context(settings),
        PdfPages(out, metadata={"Title": title, "CreationDate": None}) as pages,
    ):
        for number, start in enumerate(starts, 1):
            page, told = Figure(figsize=(_WIDE / 72, _HIGH / 72)), lines[start : start + most]
            page.text(left, top, title, va="top", fontsize=12, weight="bold", parse_math=False)
            page.text(1 - left, top, f"{number} of {len(starts)}", va="top", ha="right", fontsize=8)
            at = top - _MARGIN / _HIGH
            text = page.text(left, at, "\n".join(told), va="top", fontsize=size, parse_math=False)
            text.set_linespacing(1.3)
            pages.savefig(page)
    return out.getvalue()


def below(heading: str, inside: Sequence[str] | Table) -> list[str]:
    """Its lines; a long cell of a table goes on in the next one."""
    told = [heading, "─" * len(heading)] if heading else []
    if not isinstance(inside, Table):
        return told + [line for text in inside for line in textwrap.wrap(text, _LINE)]
    rows = (inside.columns, *inside.lines)
    cells = [[textwrap.wrap(cell, _CELL) or [""] for cell in row] for row in rows]
    widths = [max(map(len, chain(*column))) for column in zip(*cells, strict=True)]
    for row in cells:
        for parts in zip_longest(*row, fillvalue=""):
            padded = (part.ljust(width) for part, width in zip(parts, widths, strict=True))
            told.append("  ".join(padded).rstrip())
    return told
