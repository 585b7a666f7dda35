"""Clients with frozen pretrained backbones: run tables of comparisons (their report/runs.csv). In
runs.csv and cifar10.csv those of the study, in rates.csv and longer.csv those by
`benchmarks/pretrained-rates.yaml`, in federations.csv and rows-samples.csv those by
`benchmarks/pretrained-partitions.yaml` (pretrained_federations.py); the candidates of tuning.csv
(pretrained_tuning.py) and the pilot (pretrained_pilot.py).

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
    operations,
    percent,
    points,
    write_csv,
)
from benchmarks.results.pretrained_federations import (
    FLOPS,
    READS,
    all_rows_averaged,
    ended,
    federations,
)
from benchmarks.results.pretrained_normalised import local_heads, normalised
from benchmarks.results.pretrained_pilot import pilot
from benchmarks.results.pretrained_tuning import tuning
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
LEADERS = ("features", "pfedlora_plus"), ("pretrained-logits", "fedssa")
SHOWN = (
    *(LEADERS[1], LEADERS[0], ("features", "lg_fedavg")),
    *(("pretrained-logits", method) for method in ("fedrod", "fedgh", "lg_fedavg")),
)
"""Of what the head sees and a method."""
TESTS = 22
"""Gains and leads of a table."""
CIFAR10 = "cifar10.csv"
RUN = (
    *("clients", "partition.kind", "partition.samples-per-client"),
    *("representation", "sharing", "method", "seed"),
)
"""What names a run of a table, beside what was tuned."""
VISITS = 40 * 20
"""Of all clients in a run."""
RATES = "rates.csv"
LONGER = "longer.csv"
"""Standalone with four times the rounds."""
Values = Callable[[str, str, str], BySeed]


def make(page: Page) -> None:
    rows = ended(page, "runs.csv")
    by_samples = _by_samples(rows)
    for samples, of_samples in by_samples.items():
        _table(page, of_samples, f"images-{samples}")
    _table(page, ended(page, CIFAR10), "cifar10")
    gains(page, by_samples)
    federations(page)
    all_rows_averaged(page)
    _table(page, ended(page, RATES), "rates")
    more_rates(page, by_samples["10"])
    longer(page)
    normalised(page, rows, local_heads(page, rows))
    tuning(page)
    pilot(page)
    page.settings("0.00003", "0.0001", "0.0003", "0.001", "0.003", "0.01", "0.03", "0.1", "0.9")
    page.picture("study.png", lambda folder: draw(rows, folder))


def gains(page: Page, by_samples: dict[str, list[Row]]) -> None:
    """What sharing gains, by the number of images per client, of the methods of SHOWN."""
    lines = []
    for reads, method in SHOWN:
        of_each = [[row for row in rows if row["method"] == method] for rows in by_samples.values()]
        found = (
            [by_seed(rows, "final", representation=reads, sharing=kind) for kind in LABELS]
            for rows in of_each
        )
        cells = [points(difference(mean, none)) for none, mean in found]
        sent = _line(
            page, [row for row in by_samples["10"] if row["representation"] == reads], method
        )
        lines.append([f"{registry.title(method)} on {READS[reads]}", *cells, sent[-1]])
    header = ("one image of each class", "three", "five", "numbers up a visit")
    page.table("gains", ("gain from sharing", *header), lines)


def _by_samples(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each number of images per client, in order."""
    column = "partition.samples-per-client"
    counts = sorted({row[column] for row in rows}, key=int)
    return {count: [row for row in rows if row[column] == count] for count in counts}


def _values(rows: list[Row]) -> Values:
    def of(reads: str, method: str, sharing: str) -> BySeed:
        return by_seed(rows, "final", representation=reads, method=method, sharing=sharing)

    return of


def _table(page: Page, rows: list[Row], name: str) -> None:
    """A line for what the head sees and each method."""
    of = _values(rows)
    lines = []
    for reads, title in READS.items():
        here = [row for row in rows if row["representation"] == reads]
        alone = of(reads, "standalone", "mean")
        for method in registry.ordered({row["method"] for row in here}):
            lines.append([title, registry.title(method), *_line(page, here, method)])
        page.says(estimate(alone))
        page.says(*(each for kind in LABELS for each in operations(here, FLOPS, kind).values()))
        others = (of(reads, other, "mean") for other in ("lg_fedavg", "fedrod"))
        for plain in filter(None, others):
            for method in ("fd", "fedgh", "fedssa", "pfedlora_plus"):
                if mean := of(reads, method, "mean"):
                    page.says(difference(mean, plain))
    alone = of("features", "standalone", "mean")
    for method in ("standalone", "fedssa"):
        page.says(difference(of("pretrained-logits", method, "mean"), alone))
    if all(of(*leader, "mean") for leader in LEADERS):
        _leaders(page, of)
    page.whole(
        name,
        (
            *("the head sees", "method", "rate, h", "with sharing", "`sharing=none`"),
            *("gain from sharing", "− Standalone", "numbers up a visit"),
        ),
        lines,
    )


def _leaders(page: Page, of: Values) -> None:
    """The two methods that gain most, beside each other and Standalone."""
    plus, fedssa = (of(*leader, "mean") for leader in LEADERS)
    page.says(difference(plus, fedssa))
    gains = {
        (reads, method): gain(of(reads, method, "mean"), of(reads, method, "none"))
        for reads in READS
        for method in ("pfedlora_plus", "lg_fedavg", "fedssa")
    }
    page.says(difference(*(gains[leader] for leader in LEADERS)))
    for (reads, method), other in gains.items():
        if other and method != "pfedlora_plus":
            page.says(difference(gains[reads, "pfedlora_plus"], other))
    page.says(difference(plus, of("pretrained-logits", "standalone", "mean")))


def gain(mean: BySeed, none: BySeed) -> BySeed:
    """What sharing gains, by seed."""
    return {seed: mean[seed] - none[seed] for seed in mean}


def _line(page: Page, rows: list[Row], method: str) -> list[str]:
    """The cells of a method's line: what was chosen, accuracies, differences, numbers sent.

    rows: of what the head sees, with Standalone's."""
    mine = [row for row in rows if row["method"] == method]
    mean, none = (by_seed(mine, "final", sharing=sharing) for sharing in ("mean", "none"))
    alone = by_seed(rows, "final", method="standalone", sharing="mean")
    chosen = dict.fromkeys(
        ", ".join(filter(None, (row.get(name) for name in CHOSEN))) for row in mine
    )
    if method == "standalone":
        return [*chosen, percent(estimate(mean)), "", "", "", "0"]
    lead = difference(mean, alone)
    page.says(lead, bonferroni(lead, TESTS))
    without = ["= Standalone", ""]
    if none:
        gained = difference(mean, none)
        page.says(gained, difference(none, alone), bonferroni(gained, TESTS))
        without = [percent(estimate(none)), points(gained)]
    up = {round(int(row["parameters_up"]) / VISITS) for row in mine if row["sharing"] == "mean"}
    return [
        "; ".join(chosen),
        percent(estimate(mean)),
        *without,
        points(lead),
        ", ".join(f"{numbers:,}" for numbers in up),
    ]


def more_rates(page: Page, rows: list[Row]) -> None:
    """What more rates and a larger width change, beside these rows of the study."""
    new, old = _values(ended(page, RATES)), _values(rows)
    for reads in READS:
        gains = [
            gain(*(of(reads, "pfedlora_plus", kind) for kind in ("mean", "none")))
            for of in (new, old)
        ]
        page.says(difference(*gains))
    fedssa = old("pretrained-logits", "fedssa", "mean")
    page.says(difference(new("pretrained-logits", "fedssa", "mean"), fedssa))
    page.says(difference(new("features", "pfedlora_plus", "mean"), fedssa))


def longer(page: Page) -> None:
    """Standalone with four times the rounds, and beside it the others with their own."""
    short, long = (_values(ended(page, name)) for name in (RATES, LONGER))
    lines = []
    for reads, title in READS.items():
        alone, own = (of(reads, "standalone", "mean") for of in (long, short))
        leads = [difference(short(reads, m, "mean"), alone) for m in ("fedssa", "pfedlora_plus")]
        page.says(difference(alone, own))
        lines.append([title, *map(percent, map(estimate, (own, alone))), *map(points, leads)])
    header = ("Standalone, 40 rounds", "160 rounds", "FedSSA − 160 rounds")
    page.table("longer", ("the head sees", *header, "pFedLoRA+ − 160 rounds"), lines)


def draw(rows: list[Row], folder: Path) -> Path:
    """A panel for what the head sees and each number of images for which all methods were run: a
    line a method, from its accuracy without sharing to that with it."""
    counts = {
        count: found
        for count, found in _by_samples(rows).items()
        if {row["method"] for row in found}.issuperset(COLOURS)
    }
    size = (7.0, 0.6 + 1.6 * len(counts))
    with style.drawing(len(counts), len(READS), size, sharex=True, sharey=True) as (figure, axes):
        for (samples, of_samples), line in zip(counts.items(), axes, strict=True):
            of = _values(of_samples)
            for axis, (reads, name) in zip(line, READS.items(), strict=True):
                _panel(axis, partial(of, reads))
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


def gathered(name: str, folders: Iterable[Path]) -> None:
    """Adds those comparisons' run tables to a CSV; they need not have the same columns. A later
    one's run of the same seed takes the place of an earlier one's, and of the CSV's."""
    files = [RESULTS / "pretrained" / name]
    files += [folder / "report" / "runs.csv" for folder in folders]
    tables = [list(csv.DictReader(file.open(encoding="utf-8"))) for file in files]
    found = {tuple(map(row.get, RUN)): row for table in tables for row in table}
    columns = dict.fromkeys(name for table in tables for name in table[0])
    values = ([row.get(name, "") for name in columns] for row in found.values())
    write_csv(RESULTS / "pretrained" / name, [*columns], values)


if __name__ == "__main__":
    where, *folders = sys.argv[1:]
    gathered(where, map(Path, folders))
