"""`pfedlora report`: tables, figures and one page of all of it, from runs on disk."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pfedlora_flwr.comparison.plan import Keys
from pfedlora_flwr.files import make_folder, write_atomically
from pfedlora_flwr.keys import UserError
from pfedlora_flwr.report import data_figures, figures, measures, tables, words
from pfedlora_flwr.report.figures import Picture
from pfedlora_flwr.report.gains import is_control
from pfedlora_flwr.report.load import Study, load
from pfedlora_flwr.report.table import Table

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}
th,td{border:1px solid #ccc;padding:.25rem .5rem;text-align:left}
td{white-space:nowrap}th{background:#f3f3f3}figure{margin:1.5rem 0}img{max-width:100%}figcaption,p{color:#444}
"""


@dataclass(frozen=True)
class Written:
    """A report on disk. text: its notes and tables as Markdown, without the figures."""

    folder: Path
    text: str


def write_report(paths: Iterable[Path], output: Path, out: Console) -> Written:
    """Writes report.md, report.html, a CSV a table, runs.csv and the figures into `output`. Raises UserError."""
    study = load(paths)
    make_folder(output)
    every = tables.all_tables(study)
    found = [table for table in every if table.rows]
    for table in every:
        (output / f"{table.name}.csv").unlink(missing_ok=True)  # an earlier report's
    for table in found:
        write_atomically(output / f"{table.name}.csv", table.csv().encode())
    write_atomically(output / "runs.csv", tables.runs_csv(study).encode())
    with out.status("drawing figures"):
        pictures, left_out = _draw(study, output)
    notes = [*_notes(study), *left_out]
    text = _markdown(study, found, notes)
    write_atomically(output / "report.md", (text + _markdown_figures(pictures)).encode())
    write_atomically(output / "report.html", _page(study, found, pictures, notes).encode())
    return Written(output, text)


def _draw(study: Study, output: Path) -> tuple[list[Picture], list[str]]:
    """Every figure, and a line for each that could not be drawn."""
    pictures, left_out = figures.robustness(study, output), dict[tuple[str, str], list[str]]()
    drawers: dict[str, Callable[[Study, Keys, Path], Picture]] = {
        "curves": figures.curves,
        "box plot": figures.boxes,
        "trade-off": figures.trade_off,
        "class histogram": data_figures.histogram,
        "t-SNE": data_figures.representations,
    }
    for scenario in study.scenarios:
        for name, draw in drawers.items() if study.in_scenario(scenario) else ():
            if name == "trade-off" and any(map(is_control, study.in_scenario(scenario))):
                continue  # its markers are what is sent
            try:
                pictures.append(draw(study, scenario, output))
            except UserError as error:
                left_out.setdefault((name, str(error)), []).append(words.keys(scenario))
    return pictures, [f"No {name} for {'; '.join(where)}: {reason}." for (name, reason), where in left_out.items()]


def _notes(study: Study) -> list[str]:
    """What the runs have in common, and whether they were paired."""
    runs = [run for o in study.outcomes for run in o.runs.values()]
    total = len(runs) + sum(len(o.missing) for o in study.outcomes)
    common = tables.settings(study)
    lines = [f"{len(runs)} of {total} runs are completed."]
    if common:
        everywhere = ", ".join(f"{name}={value}" for name, value in common.items())
        lines.append(f"All runs: {everywhere}; everything else as the tables say, or at its default.")
    paired = all(measures.same_data([o for o in study.outcomes if o.scenario == s]) for s in study.scenarios)
    lines.append(
        "Within a scenario and seed all methods had the same partition."
        if paired
        else "**The methods of a scenario did not all have the same partition: their differences are not paired.**"
    )
    return lines


def _markdown(study: Study, found: Sequence[Table], notes: Sequence[str]) -> str:
    parts = [f"# {study.name}\n", *(f"{note}\n" for note in notes), *(table.markdown() for table in found)]
    return "".join(f"{part}\n" for part in parts)


def _markdown_figures(pictures: Sequence[Picture]) -> str:
    images = (f"![{p.caption}]({p.path.name})\n\n{p.caption}\n" for p in pictures)
    return "\n".join(["## Figures\n", *images])


def _page(study: Study, found: Sequence[Table], pictures: Sequence[Picture], notes: Sequence[str]) -> str:
    """One file that needs nothing else: the images are inside."""

    def image(picture: Picture) -> str:
        data, caption = base64.b64encode(picture.path.read_bytes()).decode(), html.escape(picture.caption)
        return f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'

    title = html.escape(study.name)
    body = [f"<h1>{title}</h1>", *(f"<p>{html.escape(note.replace('**', ''))}</p>" for note in notes)]
    body += [*(table.html() for table in found), "<h2>Figures</h2>", *map(image, pictures)]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"
