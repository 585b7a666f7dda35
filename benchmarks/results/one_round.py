"""One round of sums in the study of pretrained backbones. runs.csv: the run table of a comparison
by `benchmarks/one-round.yaml`. closed.csv: the same and further federations by other code,
`benchmarks/pooled_lda.py`, whose test accuracies the runs' must equal. The partitions are the
study's, seed by seed (by their hashes), so differences to its runs are paired.

    python -m benchmarks.results.one_round FOLDER…

takes the run tables of such comparisons."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from benchmarks.results.page import (
    RESULTS,
    BySeed,
    Page,
    Row,
    by_seed,
    difference,
    estimate,
    percent,
    points,
    write_csv,
)
from benchmarks.results.pretrained_federations import ended, values
from benchmarks.results.pretrained_normalised import CHOOSES, SAMPLES, local_heads, seen_by
from benchmarks.results.pretrained_normalised import FILE as NORMALISED
from pfedlora_flwr.methods.fedlda import FedLDA
from pfedlora_flwr.report import style
from pfedlora_flwr.report.measures import Estimate

FILE, CLOSED = "runs.csv", "closed.csv"
ANCHORED = "anchors:cifar10-1000"
"""The coordinates by the anchors of the table: their dataset and their number."""
CLASSES = 10
"""That a client holds."""
VISITS = 100
"""That send sums: one of each client."""
COLUMNS = (
    *(SAMPLES, "sharing", "sums.correction", "sums.shrinkage", "method", "seed", "final"),
    *("parameters_up", "partition"),
)
LOGITS = "pretrained-logits"
RIDGE, FEDSSA = "ridge regression, a client alone", "FedSSA, 40 rounds"
LDA, ANCHORS = "FedLDA, one round, on logits", "… on features mapped by anchors"
ROUNDING = 1e-4
"""Between two computations: a test image of a hundred clients'."""
Lines = dict[str, BySeed]


def make(page: Page) -> None:
    study = Page(RESULTS / "pretrained")
    rows, closed = ended(page, FILE), page.rows(CLOSED)
    plain = ended(study, "runs.csv")
    local = local_heads(study, plain)
    others = ended(study, NORMALISED)
    found: dict[str, Lines] = {}
    gains: dict[str, Estimate] = {}
    _check_same(rows, closed)
    for samples in sorted({row[SAMPLES] for row in rows}, key=int):
        here = [row for row in rows if row[SAMPLES] == samples]
        there = seen_by(others, samples, LOGITS)
        _check_partitions(here, there)
        ours, alone = (chosen(closed, samples, sharing=kind) for kind in ("mean", "none"))
        gains[samples] = difference(ours, alone)
        anchors = chosen(closed, samples, coordinates=ANCHORED)
        fedssa = values(there, "fedssa", "mean")
        found[samples] = {RIDGE: local[samples], FEDSSA: fedssa, LDA: ours, ANCHORS: anchors}
        page.says(*map(estimate, (ours, alone, anchors)), difference(anchors, fedssa))
        page.says(difference(ours, anchors), difference(ours, local[samples]))
        trained = values(seen_by(plain, samples, LOGITS), "standalone", "mean")
        page.says(difference(ours, trained))
    _table(page, found, gains)
    _default(page, closed)
    _others(page, closed)
    _correction(page, rows)
    page.says(*{int(row["parameters_up"]) // VISITS for row in rows if row["parameters_up"]})
    drawn = found | _many(page, closed, found)
    page.picture("one-round.png", lambda folder: draw(drawn, folder))


def chosen(
    rows: list[Row],
    samples: str,
    *,
    federation: str = "classes",
    coordinates: str = LOGITS,
    head: str = "lda",
    sharing: str = "mean",
    asked: str = "held",
) -> BySeed:
    """Test accuracies by seed, with the strength of the best validation accuracy on the first."""
    where = {"federation": federation, "samples": samples, "coordinates": coordinates}
    where |= {"head": head, "sharing": sharing, "asked": asked}
    here = [row for row in rows if where.items() <= row.items()]
    of_first = (row for row in here if row["seed"] == CHOOSES)
    best = max(of_first, key=lambda row: float(row["validation"]))
    same = (row for row in here if row["strength"] == best["strength"])
    return {row["seed"]: float(row["test"]) for row in same}


def _check_partitions(ours: list[Row], theirs: list[Row]) -> None:
    hashes = [{row["seed"]: row["partition"] for row in rows} for rows in (ours, theirs)]
    assert hashes[0].items() <= hashes[1].items(), "the partitions are not the study's"


def _check_same(runs: list[Row], closed: list[Row]) -> None:
    """Asserts that every run ends with the accuracy that the other code computes."""
    names = ("samples", "sharing", "seed", "strength")
    same = {"federation": "classes", "coordinates": LOGITS, "head": "lda", "asked": "held"}
    there = {
        tuple(row[name] for name in names): float(row["test"])
        for row in closed
        if same.items() <= row.items()
    }
    for row in (row for row in runs if row["sums.correction"] == "none"):
        at = row[SAMPLES], row["sharing"], row["seed"], row["sums.shrinkage"]
        assert abs(float(row["final"]) - there[at]) < ROUNDING, f"two computations differ: {at}"


def _default(page: Page, closed: list[Row]) -> None:
    """What the default shrinkage loses with one image a class."""
    where = {"federation": "classes", "samples": "10", "coordinates": LOGITS, "sharing": "mean"}
    usual = where | {"asked": "held", "strength": FedLDA.usual}
    at = {k: str(v) for k, v in usual.items()}
    page.says(difference(chosen(closed, "10"), by_seed(closed, "test", **at)))
    page.settings(*(f"{s:g}" for s in (0.9, 0.8, 0.65, FedLDA.usual)))


def _correction(page: Page, rows: list[Row]) -> None:
    """What the private ridge adds, by runs with the same shrinkage."""
    for samples in {row[SAMPLES] for row in rows}:
        ridge = [
            row for row in rows if (row[SAMPLES], row["sums.correction"]) == (samples, "ridge")
        ]
        same = {row["sums.shrinkage"] for row in ridge}
        plain = [row for row in rows if row[SAMPLES] == samples and row["sums.shrinkage"] in same]
        none = values(plain, "fedlda", "mean", **{"sums.correction": "none"})
        page.says(difference(values(ridge, "fedlda", "mean"), none))
        page.settings(*same)


def _images(samples: str) -> str:
    return f"{int(samples) // CLASSES} a class"


def _table(page: Page, found: dict[str, Lines], gains: dict[str, Estimate]) -> None:
    lines = [
        [name, *(percent(estimate(each[name])) for each in found.values())]
        for name in (RIDGE, FEDSSA, LDA, ANCHORS)
    ]
    beside = [difference(each[LDA], each[FEDSSA]) for each in found.values()]
    page.says(*beside)
    lines.append(["FedLDA on logits − FedSSA", *map(points, beside)])
    lines.append(["… − itself without sharing", *map(points, gains.values())])
    page.table("one-round", ("accuracy", *map(_images, found)), lines)


def _others(page: Page, closed: list[Row]) -> None:
    """A line for each federation, number of images and kind of coordinates."""
    groups = dict.fromkeys((r["federation"], r["samples"], r["coordinates"]) for r in closed)
    lines = []
    for federation, samples, coordinates in groups:
        at = {"federation": federation, "coordinates": coordinates}
        shared, everyone = (chosen(closed, samples, asked=a, **at) for a in ("held", "all"))
        alone = chosen(closed, samples, sharing="none", **at)
        gain = difference(shared, alone)
        page.says(gain, *map(estimate, (shared, everyone, alone)))
        cells = [percent(estimate(one)) for one in (shared, alone)]
        lines.append(
            [federation, samples, coordinates, *cells, points(gain), percent(estimate(everyone))]
        )
    header = ("federation", "images a client", "coordinates", "FedLDA", "without sharing")
    page.whole("federations", (*header, "gain from sharing", "among all classes"), lines)


def _many(page: Page, closed: list[Row], found: dict[str, Lines]) -> dict[str, Lines]:
    """With more images: FedLDA, and ridge regression by the other code."""
    there = {row["samples"] for row in closed if row["head"] == "ridge"}
    more: dict[str, Lines] = {}
    for samples in sorted(there - found.keys(), key=int):
        ridge = chosen(closed, samples, coordinates="features", head="ridge", sharing="none")
        more[samples] = {LDA: chosen(closed, samples), RIDGE: ridge}
        page.says(estimate(ridge), difference(more[samples][LDA], ridge))
    return more


def draw(found: dict[str, Lines], folder: Path) -> Path:
    """Accuracy against images a class, a line for each way."""
    with style.drawing(1, 1, (5.2, 3.2)) as (figure, axes):
        axis = axes[0][0]
        colours = ("#000000", "#0072B2", "#D55E00", "#009E73")
        for name, colour in zip((RIDGE, FEDSSA, LDA, ANCHORS), colours, strict=True):
            each = {n: estimate(here[name]) for n, here in found.items() if name in here}
            axis.errorbar(
                [int(samples) // CLASSES for samples in each],
                [100 * e.mean for e in each.values()],
                yerr=[100 * (e.half or 0) for e in each.values()],
                color=colour,
                marker="o",
                label=name,
            )
        axis.set_xscale("log")
        counts = [int(samples) // CLASSES for samples in found]
        axis.set_xticks(counts, map(str, counts))
        axis.minorticks_off()
        axis.set_xlabel("training images of each class that a client holds")
        axis.set_ylabel("test accuracy in %")
        axis.legend(frameon=False)
        figure.savefig(folder / "one-round.png")
    return folder / "one-round.png"


def taken(folders: list[Path]) -> None:
    """Writes runs.csv from comparisons' run tables; what a table does not say is as by default."""
    usual = {"sharing": "mean", "sums.correction": "none"}
    tables = [(folder / "report" / "runs.csv").open(encoding="utf-8") for folder in folders]
    rows = [usual | row for table in tables for row in csv.DictReader(table)]
    write_csv(RESULTS / "one-round" / FILE, COLUMNS, ([row[c] for c in COLUMNS] for row in rows))


if __name__ == "__main__":
    taken([*map(Path, sys.argv[1:])])
