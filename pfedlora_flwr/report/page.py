"""The report as one self-contained HTML file, for light and dark modes and narrow screens."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from pfedlora_flwr.report.figures import Picture
from pfedlora_flwr.report.table import Table

_ZOOM, _LEAST = 1.2, 0.8
"""A figure's size on the page over that in print; on a narrow screen it shrinks to the second, and
then scrolls."""
_STYLE = """
:root{color-scheme:light dark;--ground:#fff;--ink:#1d2127;--soft:#59616b;--line:#d8dce1;--head:#f3f5f7;--tint:#eef4fa;--mark:#0072b2;--loss:#b00020}
@media(prefers-color-scheme:dark){
:root{--ground:#14171b;--ink:#e3e6ea;--soft:#a2abb6;--line:#343a42;--head:#1f242a;--tint:#182430;--mark:#56b4e9;--loss:#ff8a80}
svg{filter:brightness(1.3)}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;max-width:80rem;margin:2rem auto;padding:0 1rem;background:var(--ground);color:var(--ink)}
h1{font-size:1.7rem;margin:0 0 1rem}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}h1,dd,td,th{overflow-wrap:anywhere}
p,figcaption{color:var(--soft);max-width:52rem}
.conclusion{font-size:1.1rem;color:var(--ink);background:var(--tint);border-left:4px solid var(--mark);padding:.7rem 1rem;max-width:none}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.2rem;margin:1rem 0;font-size:.92rem}
dt{color:var(--soft)}dd{margin:0}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:.32rem .55rem;text-align:left;white-space:nowrap}
th{background:var(--head);font-weight:600;vertical-align:bottom;white-space:normal;overflow-wrap:normal}
.n{text-align:right}.loss{color:var(--loss)}
.figures{display:flex;flex-wrap:wrap;gap:1.5rem 2.5rem}
figure{margin:0;max-width:100%}svg{display:block;height:auto;fill:currentColor}figcaption{font-size:.85rem;margin-top:.4rem}
@media(max-width:40rem){body{margin:1rem auto}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.4rem}}
"""


def page(
    title: str,
    conclusion: str,
    facts: Sequence[tuple[str, str]],
    notes: Sequence[str],
    tables: Sequence[Table],
    pictures: Sequence[Picture],
) -> str:
    """The whole page: what the numbers say, what was run, the tables, the figures."""
    name = html.escape(title)
    rows = "".join(
        f"<dt>{html.escape(label)}</dt><dd>{html.escape(text)}</dd>" for label, text in facts
    )
    body = [
        f"<h1>{name}</h1>",
        f'<p class="conclusion">{html.escape(conclusion)}</p>',
        f"<dl>{rows}</dl>",
    ]
    body += [f"<p>{html.escape(note.replace('**', ''))}</p>" for note in notes]
    body += [table.html() for table in tables]
    if pictures:
        drawn = "".join(map(_figure, pictures))
        body += ["<h2>Figures</h2>", f'<div class="figures">{drawn}</div>']
    head = (
        '<meta charset="utf-8"><meta name="viewport"'
        f' content="width=device-width"><title>{name}</title><style>{_STYLE}</style>'
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _figure(picture: Picture) -> str:
    """The SVG itself, so that black takes the colour of the page's text."""
    caption = html.escape(picture.caption)
    drawn = picture.path.with_suffix(".svg").read_text(encoding="utf-8")
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    width = _ZOOM * float(re.search(r'width="([\d.]+)pt"', drawn)[1])  # type: ignore[index]  # matplotlib always says it
    style = (
        f"width:{width:.0f}pt;max-width:100%;min-width:{min(_LEAST / _ZOOM * width, width):.0f}pt"
    )
    drawn = re.sub(
        r'width="[\d.]+pt" height="[\d.]+pt"|height="[\d.]+pt" width="[\d.]+pt"',
        f'style="{style}"',
        drawn,
        count=1,
    )
    drawn = drawn.replace("<svg ", f'<svg role="img" aria-label="{caption}" ', 1).replace(
        "#000000", "currentColor"
    )
    return (
        f'<figure style="width:{width:.0f}pt"><div'
        f' class="wide">{drawn}</div><figcaption>{caption}</figcaption></figure>'
    )
