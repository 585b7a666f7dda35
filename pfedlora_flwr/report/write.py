"""`pfedlora report`: tables, figures and one page of all of it, from runs on disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pfedlora_flwr.comparison.plan import Keys
from pfedlora_flwr.data.local import without_own_folders
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.features.tables import FIGURES
from pfedlora_flwr.files import make_folder, write_atomically
from pfedlora_flwr.report import (
    aggregation,
    data_figures,
    decision,
    figures,
    gain_figure,
    gains,
    input_figures,
    opening,
    sites,
    style,
    tables,
    words,
)
from pfedlora_flwr.report.decision import Finding
from pfedlora_flwr.report.figures import Drawer, Picture
from pfedlora_flwr.report.load import Study, load
from pfedlora_flwr.report.page import page
from pfedlora_flwr.report.table import Table, markdown
from pfedlora_flwr.runs.provenance import commits, read_about


@dataclass(frozen=True)
class Written:
    """A report on disk. verdict: its opening, a line a paragraph. table: accuracies and costs."""

    folder: Path
    verdict: str
    table: Table


def write_report(
    paths: Iterable[Path],
    output: Path,
    target: float | None = None,
    verdict: Keys | None = None,
    *,
    std: bool = False,
    best: bool = False,
) -> Written:
    """Writes report.md, report.html, a CSV and a LaTeX file a table, runs.csv and the figures (PNG,
    SVG, PDF) into `output`. Raises UserError.

    target, verdict: as for `load`. std, best: as `Study` has them.
    """
    study = replace(load(paths, target, verdict), std=std, best=best)
    judged = decision.findings(study)
    accuracies, *others = tables.all_tables(study)
    first = [decision.table(study, judged), sites.table(study, judged), accuracies]
    every = [*first, *others, decision.power(judged)]
    found = [table for table in every if table.rows]
    make_folder(output)
    for table in every:
        for suffix in ("csv", "tex"):  # an earlier report's
            (output / f"{table.name}.{suffix}").unlink(missing_ok=True)
    for table in found:
        write_atomically(output / f"{table.name}.csv", table.csv().encode())
        write_atomically(output / f"{table.name}.tex", table.latex().encode())
    write_atomically(output / "runs.csv", tables.runs_csv(study).encode())
    before = output / "report.md"
    text = before.read_text(encoding="utf-8") if before.is_file() else ""
    earlier = set(re.findall(r"^!\[.*\]\(([^/()\s]+)\.png\)$", text, re.MULTILINE))
    pictures, left_out = _draw(study, judged, output)
    for name in earlier - {picture.path.stem for picture in pictures}:
        style.remove(output, name)
    notes = [*_notes(study), *left_out]
    told, facts = opening.paragraphs(study, judged), opening.facts(study)
    text = _markdown(study.name, told, facts, notes, found, pictures)
    write_atomically(output / "report.md", text.encode())
    made = page(study.name, told, facts, notes, found, pictures)
    write_atomically(output / "report.html", made.encode())
    return Written(output, "\n".join(told), accuracies)


def _draw(study: Study, judged: Sequence[Finding], output: Path) -> tuple[list[Picture], list[str]]:
    """Every figure, and a line for each that could not be drawn."""
    left_out: dict[tuple[str, str], list[str]] = {}
    pictures = [
        *sites.figures(study, judged, output),
        *gain_figure.figures(study, output),
        *figures.robustness(study, output),
        *aggregation.pictures(study, output),
        *(picture for draw in FIGURES for picture in draw(study, output)),
    ]
    of_data: dict[str, Drawer] = {
        "class histogram": data_figures.histogram,
        "figure of inputs": input_figures.inputs,
        "t-SNE": data_figures.representations,
    }
    for scenario in filter(study.in_scenario, study.scenarios):
        own = figures.drawers(study, scenario)
        beside = study.shared(scenario)
        if beside == scenario or beside not in study.scenarios:
            own |= of_data
        for name, draw in own.items():
            try:
                pictures.append(draw(study, scenario, output))
            except UserError as error:
                reason = _without_folders(str(error), study, scenario)
                left_out.setdefault((name, reason), []).append(words.keys(scenario) or words.ONE)
    return pictures, [
        f"No {name} for {'; '.join(where)}: {reason}." for (name, reason), where in left_out.items()
    ]


def _without_folders(line: str, study: Study, scenario: Keys) -> str:
    """The line for people who have not this machine."""
    for run in (run for o in study.in_scenario(scenario) for run in o.runs.values()):
        places = {"dataset": run.experiment.dataset, "data-path": run.setup.data_path}
        line = without_own_folders(line, places | {"state-path": str(run.path)})
    return line


def _notes(study: Study) -> list[str]:
    """What the runs have in common, and whether they were paired."""
    lines = []
    if common := tables.settings(study):
        everywhere = ", ".join(f"{name}={value}" for name, value in common.items())
        lines.append(
            f"Set: {everywhere}; every other key of the Experiment as the tables say, or at its"
            " default."
        )
    if len(made := commits(read_about(run.directory.config) for run in study.runs)) > 1:
        lines.append(
            f"**The runs were made by {len(made)} versions of the code (Commit, above), which may"
            " not compute the same.**"
        )
    if len(study.methods) == 1 and not gains.shared(study):
        return lines
    lines.append(
        "Within a scenario and seed all runs had the same data."
        if all(gains.same_data(study, s) for s in study.scenarios)
        else (
            "**The runs of a scenario, with its controls, did not all have the same data: their"
            " differences are not paired.**"
        )
    )
    return lines


def _markdown(
    title: str,
    paragraphs: Sequence[str],
    facts: Sequence[tuple[str, str]],
    notes: Sequence[str],
    found: Sequence[Table],
    pictures: Sequence[Picture],
) -> str:
    parts = [
        f"# {title}\n",
        *(f"{markdown(text)}\n" for text in paragraphs),
        "".join(f"- {label}: {text}\n" for label, text in facts),
        *(f"{note}\n" for note in notes),
        *(table.markdown() for table in found),
        "## Figures\n",
        *(f"![{p.caption}]({p.path.name})\n\n{p.caption}\n" for p in pictures),
    ]
    return "\n".join(parts)
