"""One round of sums in the study of pretrained backbones: runs.csv, the run table of a comparison
by `benchmarks/one-round.yaml`. The partitions are the study's, seed by seed (by their hashes), so
differences to its runs are paired.

    python -m benchmarks.results.one_round FOLDER

takes the run table of that comparison."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from benchmarks.results.page import (
    RESULTS,
    BySeed,
    Page,
    Row,
    difference,
    estimate,
    percent,
    points,
    write_csv,
)
from benchmarks.results.pretrained_federations import ended, values
from benchmarks.results.pretrained_normalised import FILE as NORMALISED
from benchmarks.results.pretrained_normalised import SAMPLES, local_heads, seen_by
from pfedlora_flwr.report import style

FILE = "runs.csv"
CLASSES = 10
"""That a client holds."""
VISITS = 100
"""That send sums: one of each client."""
COLUMNS = (SAMPLES, "sums.correction", "method", "seed", "final", "parameters_up", "partition")
TITLES = {"none": "FedLDA, one round", "ridge": "… and a private ridge of what is left"}
RIDGE, FEDSSA = "ridge regression, a client alone", "FedSSA, 40 rounds"
Lines = dict[str, BySeed]


def make(page: Page) -> None:
    study = Page(RESULTS / "pretrained")
    rows = ended(page, FILE)
    alone = local_heads(study, ended(study, "runs.csv"))
    others = ended(study, NORMALISED)
    found: dict[str, Lines] = {}
    for samples in sorted({row[SAMPLES] for row in rows}, key=int):
        here = [row for row in rows if row[SAMPLES] == samples]
        there = seen_by(others, samples, "pretrained-logits")
        _check_partitions(here, there)
        ours = {
            title: values(here, "fedlda", "mean", **{"sums.correction": kind})
            for kind, title in TITLES.items()
        }
        found[samples] = {
            RIDGE: alone[samples],
            FEDSSA: values(there, "fedssa", "mean"),
        } | ours
    _table(page, found)
    sent = {int(row["parameters_up"]) // VISITS for row in rows}
    page.says(*sent)
    page.settings("0.2", "0.35", "0.5")
    page.picture("one-round.png", lambda folder: draw(found, folder))


def _check_partitions(ours: list[Row], theirs: list[Row]) -> None:
    hashes = [{row["seed"]: row["partition"] for row in rows} for rows in (ours, theirs)]
    assert hashes[0].items() <= hashes[1].items(), "the partitions are not the study's"


def _table(page: Page, found: dict[str, Lines]) -> None:
    plain, corrected = TITLES.values()
    lines = [
        [name, *(percent(estimate(each[name])) for each in found.values())]
        for name in (RIDGE, FEDSSA, plain, corrected)
    ]
    for other, name in ((FEDSSA, "FedLDA − FedSSA"), (RIDGE, "FedLDA − ridge regression")):
        beside = [difference(each[plain], each[other]) for each in found.values()]
        lines.append([name, *map(points, beside)])
    images = (f"{int(samples) // CLASSES} a class" for samples in found)
    page.table("one-round", ("accuracy", *images), lines)


def draw(found: dict[str, Lines], folder: Path) -> Path:
    """Accuracy against images a class, a line for each way."""
    with style.drawing(1, 1, (5.2, 3.2)) as (figure, axes):
        axis = axes[0][0]
        counts = [int(samples) // CLASSES for samples in found]
        lines = (RIDGE, FEDSSA, TITLES["none"])
        for name, colour in zip(lines, ("#000000", "#0072B2", "#D55E00"), strict=True):
            each = [estimate(here[name]) for here in found.values()]
            axis.errorbar(
                counts,
                [100 * e.mean for e in each],
                yerr=[100 * (e.half or 0) for e in each],
                color=colour,
                marker="o",
                label=name,
            )
        axis.set_xticks(counts)
        axis.set_xlabel("training images of each class that a client holds")
        axis.set_ylabel("test accuracy in %")
        axis.legend(frameon=False)
        figure.savefig(folder / "one-round.png")
    return folder / "one-round.png"


def taken(folder: Path) -> None:
    """Writes runs.csv from a comparison's run table."""
    rows = list(csv.DictReader((folder / "report" / "runs.csv").open(encoding="utf-8")))
    write_csv(
        RESULTS / "one-round" / FILE,
        ["sharing", *COLUMNS],
        ([row.get("sharing", "mean"), *map(row.get, COLUMNS)] for row in rows),
    )


if __name__ == "__main__":
    taken(Path(sys.argv[1]))
