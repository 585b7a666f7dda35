"""Clients with frozen pretrained backbones: runs.csv and cifar10.csv of the study (the comparison's
report/runs.csv), other federations (pretrained_federations.py) and the pilot (pretrained_pilot.py).

    python -m benchmarks.results.pretrained runs.csv runs/benchmarks-pretrained...

joins those comparisons' run tables in that file here."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results.page import (
    RESULTS,
    BySeed,
    Page,
    Row,
    bonferroni,
    by_seed,
    difference,
    estimate,
    percent,
    points,
    write_csv,
)
from benchmarks.results.pretrained_federations import READS, federations, operations
from benchmarks.results.pretrained_pilot import pilot
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import style

COLOURS = {
    "pfedlora_plus": "#D55E00",
    "fedssa": "#0072B2",
    "fedrod": "#CC79A7",
    "lg_fedavg": "#009E73",
    "fedgh": "#E69F00",
    "fd": "#56B4E9",
}
CHOSEN = ("lr", "adapter.hidden-dim", "fedgh.server-lr")
LABELS = {"none": "without sharing", "mean": "with sharing"}
TESTS = 22
"""Gains and leads of a table."""
CIFAR10 = "cifar10.csv"
VISITS = 40 * 20
"""Of all clients in a run."""
Values = Callable[[str, str, str, str], BySeed]


def make(page: Page) -> None:
    rows = [row for row in page.rows("runs.csv") if row["final"]]
    for samples in _samples(rows):
        _table(page, rows, samples, f"images-{samples}")
    _table(page, [row for row in page.rows(CIFAR10) if row["final"]], "10", "cifar10")
    federations(page)
    pilot(page)
    page.settings("0.001", "0.003", "0.01", "0.03", "0.9")
    page.picture("study.png", lambda folder: draw(rows, _values(rows), folder))


def _values(rows: list[Row]) -> Values:
    def of(samples: str, reads: str, method: str, sharing: str) -> BySeed:
        where = {"partition.samples-per-client": samples, "representation": reads}
        return by_seed(rows, "final", **where, method=method, sharing=sharing)

    return of


def _table(page: Page, rows: list[Row], samples: str, name: str) -> None:
    """The table of a number of images per client."""
    of = _values(rows)
    lines = []
    for reads, title in READS.items():
        here = [
            row
            for row in rows
            if (row["partition.samples-per-client"], row["representation"]) == (samples, reads)
        ]
        alone = of(samples, reads, "standalone", "mean")
        for method in registry.ordered({row["method"] for row in here}):
            lines.append(
                [title, registry.title(method), *_line(page, here, of, samples, reads, method)]
            )
        page.says(estimate(alone))
        page.says(*operations(here).values())
        others = (of(samples, reads, other, "mean") for other in ("lg_fedavg", "fedrod"))
        for plain in filter(None, others):
            for method in ("fd", "fedgh", "fedssa", "pfedlora_plus"):
                if mean := of(samples, reads, method, "mean"):
                    page.says(difference(mean, plain))
    best = of(samples, "features", "pfedlora_plus", "mean")
    page.says(difference(best, of(samples, "pretrained-logits", "fedssa", "mean")))
    page.table(
        name,
        (
            *("the head sees", "method", "rate, h", "with sharing", "`sharing=none`"),
            *("gain from sharing", "− Standalone", "numbers up a visit"),
        ),
        lines,
    )


def _line(
    page: Page, rows: list[Row], of: Values, samples: str, reads: str, method: str
) -> list[str]:
    """The cells of a method's line: what was chosen, accuracies, differences, numbers sent."""
    mine = [row for row in rows if row["method"] == method]
    mean, none = (of(samples, reads, method, sharing) for sharing in ("mean", "none"))
    alone = of(samples, reads, "standalone", "mean")
    chosen = dict.fromkeys(
        ", ".join(filter(None, (row.get(name) for name in CHOSEN))) for row in mine
    )
    if method == "standalone":
        return [*chosen, percent(estimate(mean)), "", "", "", "0"]
    lead = difference(mean, alone)
    page.says(lead, bonferroni(lead, TESTS))
    without = ["= Standalone", ""]
    if none:
        gain = difference(mean, none)
        page.says(gain, difference(none, alone), bonferroni(gain, TESTS))
        without = [percent(estimate(none)), points(gain)]
    up = {round(int(row["parameters_up"]) / VISITS) for row in mine if row["sharing"] == "mean"}
    return [
        "; ".join(chosen),
        percent(estimate(mean)),
        *without,
        points(lead),
        ", ".join(f"{numbers:,}" for numbers in up),
    ]


def draw(rows: list[Row], of: Values, folder: Path) -> Path:
    """A panel for what the head sees and the number of images: a line a method, from its accuracy
    without sharing to that with it."""
    counts = _samples(rows)
    size = (7.0, 0.6 + 1.6 * len(counts))
    with style.drawing(len(counts), len(READS), size, sharex=True, sharey=True) as (figure, axes):
        for samples, line in zip(counts, axes, strict=True):
            for axis, (reads, name) in zip(line, READS.items(), strict=True):
                _panel(axis, partial(of, samples, reads))
                axis.set_title(f"{name}, {samples} images per client")
        for axis in axes[-1]:
            axis.set_xlabel("test accuracy in %")
        axes[0][0].legend(frameon=False)
        figure.savefig(folder / "study.png")
    return folder / "study.png"


def _panel(axis: Any, of: Callable[[str, str], BySeed]) -> None:
    alone = 100 * estimate(of("standalone", "mean")).mean
    axis.axvline(alone, color="black", linestyle=":", label="Standalone")
    every = [*reversed(COLOURS)]  # the panels of a line share their axis
    for at, method in enumerate(every):
        if not of(method, "mean"):
            axis.annotate("not run", (0.02, at), xycoords=("axes fraction", "data"), va="center")
            continue
        found = {
            sharing: estimate(of(method, sharing) or of("standalone", "mean"))
            for sharing in ("none", "mean")
        }
        means = [100 * e.mean for e in found.values()]
        colour = COLOURS[method]
        axis.plot(means, [at, at], color=colour, alpha=0.4, linewidth=2)
        for (sharing, e), filled in zip(found.items(), ("white", colour), strict=True):
            axis.errorbar(
                100 * e.mean,
                at,
                xerr=100 * (e.half or 0),
                color=colour,
                marker="o",
                markerfacecolor=filled,
                linestyle="none",
                label=LABELS[sharing] if not at else None,
            )
    axis.set_yticks(range(len(every)), [registry.title(method) for method in every])
    axis.set_ylim(-0.6, len(every) - 0.4)


def _samples(rows: list[Row]) -> list[str]:
    return sorted({row["partition.samples-per-client"] for row in rows}, key=int)


def gathered(name: str, folders: Iterable[Path]) -> None:
    """Writes a CSV of those comparisons' run tables, which need not have the same columns."""
    tables = [
        list(csv.DictReader((folder / "report" / "runs.csv").open(encoding="utf-8")))
        for folder in folders
    ]
    rows = [row for table in tables for row in table]
    columns = dict.fromkeys(name for table in tables for name in table[0])
    values = ([row.get(name, "") for name in columns] for row in rows)
    write_csv(RESULTS / "pretrained" / name, [*columns], values)


if __name__ == "__main__":
    where, *folders = sys.argv[1:]
    gathered(where, map(Path, folders))
