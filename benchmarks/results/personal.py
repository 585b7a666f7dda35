"""The personal baselines beside themselves without sharing and beside Standalone: runs.csv, of runs
by `quick/personal`.

python -m benchmarks.results.personal FOLDER..."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.results.page import (
    COUNTED,
    RESULTS,
    BySeed,
    Page,
    bonferroni,
    by_seed,
    counted,
    difference,
    estimate,
    forest,
    operations,
    percent,
    points,
    write_csv,
)
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report.measures import Estimate

KEYS = ("dataset", "clients", "method", "sharing", "seed")
COLUMNS = (*KEYS, *COUNTED)
COUNT = "at_best_validation"
SHOWN = ("fedavg", "fedrep", "fedrod", "fedbabu", "apfl", "pfedlora")
"""Of fifty clients on digits, on the page."""
TESTS = 24
"""Gains and leads of a table."""


def make(page: Page) -> None:
    rows = page.rows("runs.csv")
    for dataset, clients in sorted({(row["dataset"], row["clients"]) for row in rows}):
        of = [row for row in rows if (row["dataset"], row["clients"]) == (dataset, clients)]
        alone = by_seed(of, COUNT, method="standalone", sharing="mean")
        work = operations(of)
        lines = []
        for method in registry.ordered({row["method"] for row in of}):
            mean, none = (
                by_seed(of, COUNT, method=method, sharing=kind) for kind in ("mean", "none")
            )
            page.says(estimate(mean))
            cells = [percent(estimate(mean)), "", "", ""]
            if method != "standalone":
                lead = difference(mean, alone)
                page.says(lead)
                cells[3] = points(lead)
            if none:
                gain = difference(mean, none)
                page.says(estimate(none), gain, difference(none, alone))
                cells[1:3] = percent(estimate(none)), points(gain)
            elif method != "standalone":
                cells[1] = "= Standalone"
            lines.append([registry.title(method), *cells, f"{work[method]:.2f}"])
        header = ("with sharing", "`sharing=none`", "gain", "− Standalone", "operations")
        page.whole(f"{dataset}-{clients}", ("method", *header), lines)
        if (dataset, clients) == ("digits", "50"):
            titles = {registry.title(method) for method in SHOWN}
            page.table("shown", ("method", *header), [x for x in lines if x[0] in titles])
    digits = [row for row in rows if row["dataset"] == "digits"]
    fifty = [row for row in digits if row["clients"] == "50"]

    def of_fifty(method: str, sharing: str) -> BySeed:
        return by_seed(fifty, COUNT, method=method, sharing=sharing)

    panels: dict[str, list[tuple[str, Estimate]]] = {"gain from sharing": [], "− Standalone": []}
    for method in registry.ordered({row["method"] for row in fifty} - {"standalone"}):
        mean, none = (of_fifty(method, sharing) for sharing in ("mean", "none"))
        alone = of_fifty("standalone", "mean")
        for panel, other in zip(panels.values(), (none or alone, alone), strict=True):
            panel.append((registry.title(method), difference(mean, other)))
    page.picture("fifty.png", lambda to: forest(panels, "points", to / "fifty.png"))
    lead = difference(of_fifty("fedrep", "mean"), of_fifty("standalone", "mean"))
    page.says(bonferroni(lead, TESTS))
    page.says(difference(of_fifty("fedrep", "none"), of_fifty("fedrod", "mean")))
    for more, less in (("fedrod", "fedavg"), ("fedrep", "fedrod")):
        page.says(difference(of_fifty(more, "mean"), of_fifty(less, "mean")))
    for clients, methods in (
        ("10", ("fedper", "fedrep", "fedprox", "fedala")),
        ("50", ("fedrod", "fedbabu", "lg_fedavg")),
    ):
        for method in methods:
            mean, none = (
                by_seed(digits, "final", clients=clients, method=method, sharing=kind)
                for kind in ("mean", "none")
            )
            page.says(difference(mean, none))
    page.says(estimate(by_seed(digits, "final", clients="10", method="standalone", sharing="mean")))
    page.not_kept("0.55", "1.80")


def joined(folders: Iterable[Path]) -> None:
    """Writes runs.csv of the completed runs in those folders."""
    rows = counted(folders, lambda e: (e.dataset, e.clients, e.method, e.sharing, e.seed))
    write_csv(RESULTS / "personal" / "runs.csv", COLUMNS, rows)


if __name__ == "__main__":
    joined(map(Path, sys.argv[1:]))
