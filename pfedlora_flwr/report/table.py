"""One table of a report, and its three forms."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A row is {heading: cell}; a heading that a row lacks is an empty cell. Cells are text,
    `**bold**` where the best is marked.

    name: the file's.
    """

    name: str
    title: str
    rows: Sequence[Mapping[str, str]]
    note: str = ""

    @property
    def columns(self) -> list[str]:
        """The headings, in the order of their first row."""
        return list(dict.fromkeys(heading for row in self.rows for heading in row))

    @property
    def lines(self) -> list[list[str]]:
        """The cells of each row, in the columns' order."""
        return [[row.get(heading, "") for heading in self.columns] for row in self.rows]

    def markdown(self) -> str:
        """A heading, the table in GitHub's form, and the note."""
        lines = [self.columns, ["---"] * len(self.columns), *self.lines]
        body = "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )
        return f"## {self.title}\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")

    def csv(self) -> str:
        """Comma-separated, without marks."""
        out = io.StringIO()
        lines = ([cell.replace("**", "") for cell in line] for line in (self.columns, *self.lines))
        csv.writer(out, lineterminator="\n").writerows(lines)
        return out.getvalue()

    def html(self) -> str:
        """The same for a page; a column of numbers stands to the right."""

        numeric = [
            all(re.match(r"\W*\d|–|$", line[i]) for line in self.lines)
            for i in range(len(self.columns))
        ]

        def line(tag: str, cells: Sequence[str]) -> str:
            texts = (re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(cell)) for cell in cells)
            opened = (f'<{tag} class="n">' if right else f"<{tag}>" for right in numeric)
            return (
                "<tr>"
                + "".join(f"{tag_}{text}</{tag}>" for tag_, text in zip(opened, texts, strict=True))
                + "</tr>"
            )

        body = "\n".join(line("td", cells) for cells in self.lines)
        text = re.sub(r"`(.+?)`", r"<code>\1</code>", html.escape(self.note))
        note = f"<p>{text}</p>" if self.note else ""
        table = f"<table>\n{line('th', self.columns)}\n{body}\n</table>"
        return f'<h2>{html.escape(self.title)}</h2>\n<div class="wide">{table}</div>\n{note}'
