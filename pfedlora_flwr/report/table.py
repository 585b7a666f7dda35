"""One table of a report, and its four forms."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pfedlora_flwr.errors import printable

LOSS = "▼ "
"""Before a cell that is a loss, which a page shows in red."""


_SECOND = re.compile(r"^\*(\d[^*]*)\*")


def plain(cell: str) -> str:
    """A cell without marks."""
    return _SECOND.sub(r"\1", cell.replace("**", ""))


@dataclass(frozen=True)
class Table:
    """A row is {heading: cell}; a heading that a row lacks is an empty cell. Cells are text,
    `**bold**` where the best is marked, `*1.23*` the second best; whoever wrote it, no form has a
    cell that acts.

    name: the file's.
    """

    name: str
    title: str
    rows: Sequence[Mapping[str, str]]
    note: str = ""

    @cached_property
    def columns(self) -> list[str]:
        """The headings, in the order of their first row."""
        return [printable(heading) for heading in self._headings]

    @cached_property
    def lines(self) -> list[list[str]]:
        """The cells of each row, in the columns' order."""
        return [[printable(row.get(name, "")) for name in self._headings] for row in self.rows]

    @cached_property
    def _headings(self) -> list[str]:
        return list(dict.fromkeys(heading for row in self.rows for heading in row))

    def markdown(self) -> str:
        """A heading, the table in GitHub's form, and the note."""
        lines = [self.columns, ["---"] * len(self.columns), *self.lines]
        body = "\n".join("| " + " | ".join(map(markdown, line)) + " |" for line in lines)
        return f"## {self.title}\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")

    def csv(self) -> str:
        """Comma-separated, without marks. An apostrophe stands before a cell that a spreadsheet
        would take for a formula."""
        out = io.StringIO()
        lines = (map(_csv, line) for line in (self.columns, *self.lines))
        csv.writer(out, lineterminator="\n").writerows(lines)
        return out.getvalue()

    @property
    def numeric(self) -> list[bool]:
        """Of each column, whether it holds numbers: these stand to the right."""
        columns = zip(*self.lines, strict=True)
        return [all(re.match(r"\W*\d|–|$", cell) for cell in cells) for cells in columns]

    def latex(self) -> str:
        r"""A table float (booktabs), for \input; its first line names the package it needs."""

        def line(cells: Sequence[str]) -> str:
            return " & ".join(map(_latex, cells)) + r" \\"

        title, note = _latex(self.title), _latex(self.note)
        return "\n".join(
            [
                r"% needs \usepackage{booktabs}",
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{title}}}",
                rf"\label{{tab:{self.name}}}",
                rf"\begin{{tabular}}{{{''.join('r' if n else 'l' for n in self.numeric)}}}",
                r"\toprule",
                line(self.columns),
                r"\midrule",
                *map(line, self.lines),
                r"\bottomrule",
                r"\end{tabular}",
                *([rf"\par\smallskip{{\footnotesize {note}}}"] if note else []),
                r"\end{table}",
                "",
            ]
        )

    def html(self) -> str:
        """The table for a page, without its title and a scenario that all rows share; the note is a
        fold."""
        if "scenario" in self.columns and len({row.get("scenario") for row in self.rows}) == 1:
            rest = [{k: v for k, v in row.items() if k != "scenario"} for row in self.rows]
            return replace(self, rows=rest).html()
        numeric = self.numeric

        def line(tag: str, cells: Sequence[str]) -> str:
            made = ""
            for right, cell in zip(numeric, cells, strict=True):
                bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(cell))
                kind = " ".join(["n"] * right + ["loss"] * cell.startswith(LOSS))
                opened = f'{tag} class="{kind}"' if kind else tag
                text = _SECOND.sub(r"<u>\1</u>", bold)
                made += f"<{opened}>{text}</{tag}>"
            return f"<tr>{made}</tr>"

        body = "\n".join(line("td", cells) for cells in self.lines)
        text = re.sub(r"`(.+?)`", r"<code>\1</code>", html.escape(self.note))
        how = '<details class="note"><summary>How to read this table</summary>'
        head = f"<thead>{line('th', self.columns)}</thead>"
        return (
            f'<div class="wide" tabindex="0"><table>{head}\n<tbody>{body}</tbody></table></div>\n'
            + (f"{how}<p>{text}</p></details>" if text else "")
        )


_FORMULA = re.compile(r"\s*[=+\-@]")
_NUMBERS = re.compile(r"-|[+-]\d(?:[\d\s.,%±()+−–-]|of|seeds?|to)*")
"""Cells of ours that begin like a formula, such as `+1.23 ± 0.20 (2 seeds)`."""


def markdown(cell: str) -> str:
    """A cell or a text in Markdown: no end of it, no HTML and no link."""
    cell = re.sub("<(?=[A-Za-z/!?])", "&lt;", cell.replace("|", "\\|"))
    return cell.replace("](", "]&#40;")


def _csv(cell: str) -> str:
    text = plain(cell)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBERS.fullmatch(text) else text


_LATEX = {c: rf"\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "²": "$^2$",
    "∞": r"$\infty$",
    "δ": r"$\delta$",
    "ε": r"$\varepsilon$",
    "η": r"$\eta$",
    "μ": r"$\mu$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "λ": r"$\lambda$",
    "ω": r"$\omega$",
    "Δ": r"$\Delta$",
    "\N{NARROW NO-BREAK SPACE}": r"\,",
    "\N{NO-BREAK SPACE}": "~",
}
"""Characters that LaTeX reads as something else, or for which its usual fonts have no sign. Others
beyond ASCII stay: pdflatex reads letters of most languages, and lualatex all."""


def _latex(text: str) -> str:
    """A cell in LaTeX; its marks for bold and code become commands."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    escaped = re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", escaped)
    escaped = _SECOND.sub(r"\\underline{\1}", escaped)
    return re.sub(r"`(.+?)`", r"\\texttt{\1}", escaped)
