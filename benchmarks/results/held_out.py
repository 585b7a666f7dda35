"""Clients that come later, on CIFAR-10: runs.csv, of a comparison by `benchmarks/held-out.yaml`.

python -m benchmarks.results.held_out FOLDER"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.results.page import (
    RESULTS,
    Page,
    Row,
    bonferroni,
    by_seed,
    completed,
    difference,
    estimate,
    forest,
    merged,
    percent,
    points,
)
from pfedlora_flwr.features.held_out.record import lines_of
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report.measures import Estimate

COLUMNS = (
    *("method", "seed", "client", "model", "samples", "test", "visits", "alone_visits"),
    *("accuracy", "alone_accuracy", "flops", "alone_flops", "trained_accuracy"),
)
SAMPLES = (5, 20, 80, 320)
TESTS = 16
"""Differences on the page: of four methods, Standalone having none."""


def make(page: Page) -> None:
    rows = page.rows("runs.csv")
    lines = []
    panels: dict[str, list[tuple[str, Estimate]]] = {f"{n} samples": [] for n in SAMPLES[1:]}
    for method in registry.ordered({row["method"] for row in rows}):
        own = [row for row in rows if row["method"] == method]
        trained = by_seed(own, "trained_accuracy")
        page.says(estimate(trained), seeds=True)
        cells = []
        for samples in SAMPLES:
            adapted, alone = (
                mean_by_seed(own, samples, name) for name in ("accuracy", "alone_accuracy")
            )
            if method == "standalone":  # it is itself alone
                page.says(estimate(adapted), seeds=True)
                cells.append(percent(estimate(adapted)))
                continue
            gain = difference(adapted, alone)
            page.says(estimate(adapted), estimate(alone), gain, seeds=True)
            if (panel := panels.get(f"{samples} samples")) is not None:
                panel.append((registry.title(method), gain))
            assert not bonferroni(gain, TESTS).sign, "the page says that none is"
            means = (f"{100 * estimate(each).mean:.2f}" for each in (adapted, alone))
            cells.append("{} ({}): {}".format(*means, points(gain)))
        lines.append([registry.title(method), *cells, percent(estimate(trained))])
    page.table(
        "held-out",
        ("method", *(f"{n} samples" for n in SAMPLES), "trained clients"),
        lines,
    )
    page.picture(
        "gains.png", lambda to: forest(panels, "points over training alone", to / "gains.png")
    )


def mean_by_seed(rows: Iterable[Row], samples: int, column: str) -> dict[str, float]:
    """The mean over the held-out clients of each seed."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["samples"] == str(samples):
            found.setdefault(row["seed"], []).append(float(row[column]))
    return {seed: statistics.fmean(values) for seed, values in found.items()}


def joined(folder: Path) -> None:
    """Puts the completed runs in that folder among those of runs.csv."""
    found = list[list[object]]()
    for run, said in completed(folder):
        e = run.experiment()
        for row in lines_of(run):
            found.append(
                [
                    *(e.method, e.seed, row["client"], row["model"], row["samples"], row["test"]),
                    *(row["visits"], row["alone_visits"], row["accuracy"], row["alone_accuracy"]),
                    *(row["flops"], row["alone_flops"], said["accuracy"]["final"]),
                ]
            )
    keys = ("method", "seed", "client", "samples")
    merged(RESULTS / "held-out" / "runs.csv", COLUMNS, keys, found)


if __name__ == "__main__":
    joined(Path(sys.argv[1]))
