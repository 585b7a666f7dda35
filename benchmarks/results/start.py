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
    Row,
    by_seed,
    counted,
    difference,
    estimate,
    percent,
    points,
    write_csv,
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
            page.says(*work(rows, method, mu))
            name = registry.title(method) + (f", μ = {mu}" if mu else "")
            lines.append([name, percent(estimate(mean)), *cells])
    header = ("with sharing", "`sharing=none`", "gain from sharing", "− Standalone")
    page.table("start", ("method", *header, "none − Standalone"), lines)
    page.settings("0.5", "0.9", "2.7", "25.68", "22.97")
    page.quotes("sensitivity", "0.23 ± 1.22")


def work(rows: list[Row], method: str, mu: str) -> list[float]:
    """The operations by seed, as multiples of Standalone's."""
    mine = by_seed(rows, "operations", method=method, mu=mu, sharing="mean")
    alone = by_seed(rows, "operations", method="standalone", sharing="mean")
    return [mine[seed] / alone[seed] for seed in mine]


def joined(folders: Iterable[Path]) -> None:
    """Puts the completed runs in those folders among those of runs.csv."""
    found: dict[tuple[str, ...], list[object]] = {
        tuple(row[name] for name in KEYS): [*row.values()]
        for row in Page(RESULTS / "start").rows("runs.csv")
    }
    new = counted(folders, lambda e: (e.method, e.flat().get("mu", ""), e.sharing, e.seed))
    found |= {tuple(map(str, row[: len(KEYS)])): row for row in new}
    write_csv(RESULTS / "start" / "runs.csv", COLUMNS, sorted(found.values(), key=str))


if __name__ == "__main__":
    joined(map(Path, sys.argv[1:]))
