"""The report as one self-contained HTML file, for light and dark modes and narrow screens."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from pfedlora_flwr.features.tables import OF_GAINS
from pfedlora_flwr.report import gains
from pfedlora_flwr.report.figures import Picture
from pfedlora_flwr.report.table import Table

_ZOOM, _LEAST = 1.2, 0.8
"""A figure's size on the page over that in print; on a narrow screen it shrinks to the second, and
then scrolls."""
_BROAD = 400
"""Points from which on a figure takes a printed page's width."""
_STYLE, _SCRIPT = (
    Path(__file__).with_name(f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js")
)
_SECTIONS = (
    ("Who gains", ("gain", "sites", *OF_GAINS), ("verdict", "sites", *OF_GAINS, "clients")),
    ("Accuracy and cost", (), ("accuracy", "missing")),
    ("Curves", ("curves", "robustness"), ()),
    ("The data", ("partition", "inputs"), ()),
    ("What was sent, and who could see it", (), ("sent", "known", "privacy")),
)
"""What is open: a title, and the names of figures and of tables. The rest is in folds."""


def page(
    title: str,
    paragraphs: Sequence[str],
    facts: Sequence[tuple[str, str]],
    notes: Sequence[str],
    tables: Sequence[Table],
    pictures: Sequence[Picture],
) -> str:
    """The whole page: the verdict, who gains, accuracies, curves, data, and the rest in folds."""
    name, known = html.escape(title), dict(facts)
    told = "".join(f"<p>{html.escape(text)}</p>" for text in paragraphs)
    what = html.escape(f"{known['Data']}. {known['Runs']}.")
    body = [f'<h1>{name}</h1><p class="what">{what}</p><div class="conclusion">{told}</div>']
    left = [*pictures]
    for heading, of_figures, of_tables in _SECTIONS:
        found = [table for table in tables if table.name in of_tables]
        drawn = _taken(left, of_figures)
        if drawn or found:
            body += [f"<h2>{heading}</h2>", drawn]
            body += (
                (f"<h3>{html.escape(table.title)}</h3>" if len(found) > 1 else "") + table.html()
                for table in found
            )
    for table in tables:
        if not any(table.name in of_tables for _, _, of_tables in _SECTIONS):
            body.append(_fold(html.escape(table.title), table.html() + _taken(left, (table.name,))))
    if left:
        body.append(_fold("Further figures", _figures(left)))
    body.append(_fold("What was run", listed(facts, notes)))
    return document(title, body)


def listed(facts: Sequence[tuple[str, str]], notes: Sequence[str]) -> str:
    """A list of facts, and paragraphs below it."""
    rows = "".join(
        f"<dt>{html.escape(label)}</dt><dd>{html.escape(text)}</dd>" for label, text in facts
    )
    said = "".join(f"<p>{html.escape(note.replace('**', ''))}</p>" for note in notes)
    return f"<dl>{rows}</dl>{said}"


def document(title: str, body: Sequence[str]) -> str:
    """The HTML file around parts of a body, which are HTML; the title is text."""
    head = (
        '<meta charset="utf-8"><meta name="viewport"'
        f' content="width=device-width"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main>\n'
        + "\n".join(body)
        + f"\n</main><script>{_SCRIPT}</script></body></html>\n"
    )


def _fold(title: str, inside: str) -> str:
    return f'<details class="fold"><summary>{title}</summary>{inside}</details>'


def _taken(left: list[Picture], names: tuple[str, ...]) -> str:
    """The figures of these names, which are then gone; those of controls stay."""
    found = [
        picture
        for name in names
        for picture in left
        if (stem := picture.path.stem).startswith(name)
        if not gains.OF_CONTROLS.search(stem)
    ]
    left[:] = [picture for picture in left if picture not in found]
    return _figures(found)


def _figures(pictures: Sequence[Picture]) -> str:
    shown = "\n".join(map(_figure, pictures))
    return f'<div class="figures">{shown}</div>' if shown else ""


def _figure(picture: Picture) -> str:
    """The SVG itself, so that black takes the colour of the page's text."""
    caption = html.escape(picture.caption)
    drawn = picture.path.with_suffix(".svg").read_text(encoding="utf-8")
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    width = _ZOOM * float(re.search(r'width="([\d.]+)pt"', drawn)[1])  # type: ignore[index]  # matplotlib always says it
    least = min(_LEAST / _ZOOM * width, width)
    style = f'style="width:{width:.0f}pt;max-width:100%;min-width:{least:.0f}pt"'
    size = r'width="[\d.]+pt" height="[\d.]+pt"|height="[\d.]+pt" width="[\d.]+pt"'
    drawn = re.sub(size, style, drawn, count=1)
    drawn = drawn.replace("<svg ", f'<svg role="img" aria-label="{caption}" ', 1)
    drawn = drawn.replace("#000000", "currentColor")
    drawn = re.sub(r'id="\w+:([^"]*)"', r'data-of="\1"', drawn)
    return (
        f'<figure{" class=broad" if width > _BROAD else ""} style="width:{width:.0f}pt"><div'
        f' class="wide" tabindex="0">{drawn}</div><figcaption>{caption}</figcaption></figure>'
    )
