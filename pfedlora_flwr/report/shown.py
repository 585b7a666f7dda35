"""A report for who looks at it in Python: one figure, and a page of a few lines."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pfedlora_flwr.errors import UserError, wrong
from pfedlora_flwr.report import (
    data_figures,
    decision,
    figures,
    gain_figure,
    input_figures,
    opening,
    sites,
    tables,
    words,
)
from pfedlora_flwr.report.figures import Drawer, Picture
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.page import listed
from pfedlora_flwr.report.style import Kept

_OF_ALL: dict[str, Callable[[Study, Kept], list[Picture]]] = {
    "gain": gain_figure.figures,
    "sites": lambda study, kept: sites.figures(study, decision.findings(study), kept),
}
_OF_SCENARIO: dict[str, Drawer] = {
    "curves": figures.curves,
    "clients": figures.boxes,
    "partition": data_figures.histogram,
    "inputs": input_figures.inputs,
    "t-sne": data_figures.representations,
}


def figure(study: Study, kind: str, keys: Mapping[str, object]) -> Any:
    """A Matplotlib figure, which a notebook shows by itself. keys: of the scenario, where there are
    several. Raises UserError."""
    return _drawn(study, kind, keys)[1]


def _drawn(study: Study, kind: str, keys: Mapping[str, object]) -> tuple[Picture, Any]:
    """It, and what it shows."""
    kept = Kept()
    if kind in _OF_ALL:
        pictures = _OF_ALL[kind](study, kept)
        if not pictures:
            raise UserError(f"no figure {kind!r}: it needs a method beside Standalone or a control")
    elif kind in _OF_SCENARIO:
        every = decision.compared(study) or [s for s in study.scenarios if study.in_scenario(s)]
        found = [scenario for scenario in every if keys.items() <= scenario.items()]
        if len(found) != 1:
            there = " | ".join(words.keys(scenario) for scenario in every)
            raise UserError(f"{kind!r} is of one scenario, and {len(found)} fit; there are {there}")
        pictures = [_OF_SCENARIO[kind](study, found[0], kept)]
    else:
        raise wrong("kind", kind, " | ".join([*_OF_SCENARIO, *_OF_ALL]))
    drawn = kept[pictures[0].path.stem]
    drawn._repr_png_ = partial(_png, drawn)
    return pictures[0], drawn


def _png(drawn: Any) -> tuple[bytes, dict[str, int]]:
    """The file, and its width on a screen in pixels."""
    drawn.savefig(out := io.BytesIO(), format="png", dpi=200)
    return out.getvalue(), {"width": round(100 * drawn.get_figwidth())}


def page(study: Study) -> str:
    """The verdict, of several runs the accuracies, a figure and the facts, as HTML."""
    told = opening.paragraphs(study, decision.findings(study))
    body = [f"<p>{html.escape(text)}</p>" for text in told]
    if len(study.runs) > 1:
        body.append(tables.accuracy(study).html())
    gained = gain_figure.figures(study, Kept())
    scenario = (decision.compared(study) or study.scenarios)[0]
    picture, drawn = _drawn(study, *(("gain", {}) if gained else ("curves", scenario)))
    data, size = _png(drawn)
    body.append(
        f'<img alt="{html.escape(picture.caption)}" width="{size["width"]}"'
        f' src="data:image/png;base64,{base64.b64encode(data).decode()}">'
    )
    facts = listed(opening.facts(study), [])
    return "\n".join([*body, f"<details><summary>What was run</summary>{facts}</details>"])
