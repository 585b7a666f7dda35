"""A common start: runs.csv, of comparisons by `benchmarks/start.yaml`.

python -m benchmarks.results.start FOLDER..."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.results.page import (
    COUNTED,
    RESULTS,
    Page,
    by_seed,
    counted,
    difference,
    estimate,
    merged,
    operations,
    percent,
    points,
)
from pfedlora_flwr.methods import registry

KEYS = ("method", "mu", "sharing", "seed")
COLUMNS = (*KEYS, *COUNTED)
COUNT = "at_best_validation"


def make(page: Page) -> None:
    rows = page.rows("runs.csv")
    alone = by_seed(rows, COUNT, method="standalone", sharing="mean")
    page.says(estimate(alone), seeds=True)
    lines = [["Standalone", percent(estimate(alone)), "", "", "", ""]]
    for method in registry.ordered({row["method"] for row in rows} - {"standalone"}):
        for mu in sorted({row["mu"] for row in rows if row["method"] == method}):
            mean, none = (
                by_seed(rows, COUNT, method=method, mu=mu, sharing=kind)
                for kind in ("mean", "none")
            )
            lead = difference(mean, alone)
            page.says(estimate(mean), lead, seeds=True)
            cells = ["= Standalone", "", points(lead), ""]
            if none:
                gain, own = difference(mean, none), difference(none, alone)
                page.says(estimate(none), gain, own, seeds=True)
                shown = points(gain, seeds=gain.half is not None)
                cells = [percent(estimate(none)), shown, points(lead), points(own)]
            name = registry.title(method) + (f", μ = {mu}" if mu else "")
            lines.append([name, percent(estimate(mean)), *cells])
    header = ("with sharing", "`sharing=none`", "gain from sharing", "− Standalone")
    page.table("start", ("method", *header, "none − Standalone"), lines)
    page.says(*operations(rows).values())
    page.settings("0.5", "0.9", "2.7", "25.68", "22.97")
    page.quotes("sensitivity", "0.23 ± 1.22")


def joined(folders: Iterable[Path]) -> None:
    """Puts the completed runs in those folders among those of runs.csv."""
    rows = counted(folders, lambda e: (e.method, e.flat().get("mu", ""), e.sharing, e.seed))
    merged(RESULTS / "start" / "runs.csv", COLUMNS, KEYS, rows)


if __name__ == "__main__":
    joined(map(Path, sys.argv[1:]))
