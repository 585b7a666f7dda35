"""Clients that come later, on CIFAR-10: runs.csv, of a comparison by `benchmarks/held-out.yaml`.

python -m benchmarks.results.held_out FOLDER"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.results.page import RESULTS, Page, Row, completed, signed, write_csv
from pfedlora_flwr.methods import registry

COLUMNS = (
    *("method", "seed", "client", "model", "samples", "test", "visits", "alone_visits"),
    *("accuracy", "alone_accuracy", "flops", "alone_flops", "trained_accuracy"),
)
SAMPLES = (5, 20, 80, 320)


def make(page: Page) -> None:
    rows = page.rows("runs.csv")
    lines = []
    for method in registry.ordered({row["method"] for row in rows}):
        cells = []
        for samples in SAMPLES:
            own = [r for r in rows if (r["method"], r["samples"]) == (method, str(samples))]
            adapted, alone = (_mean(own, name) for name in ("accuracy", "alone_accuracy"))
            page.says(adapted, alone, adapted - alone)
            cells.append(f"{adapted:.2f} ({alone:.2f}): {signed(adapted - alone)}")
        trained = statistics.fmean(_percents(r for r in rows if r["method"] == method))
        page.says(trained)
        lines.append([registry.title(method), *cells, f"{trained:.2f}"])
    page.table(
        "held-out",
        ("method", *(f"{n} samples" for n in SAMPLES), "sampled clients"),
        lines,
    )


def _mean(rows: Sequence[Row], name: str) -> float:
    """In %, over the held-out clients."""
    return 100 * statistics.fmean(float(row[name]) for row in rows)


def _percents(rows: Iterable[Row]) -> list[float]:
    return [100 * float(row["trained_accuracy"]) for row in rows]


def joined(folder: Path) -> None:
    """Writes runs.csv of the completed runs in that folder."""
    found = []
    for run, said in completed(folder):
        e = run.experiment()
        found += [
            [
                *(e.method, e.seed, row["client"], row["model"], row["samples"], row["test"]),
                *(row["visits"], row["alone_visits"], row["accuracy"], row["alone_accuracy"]),
                *(row["flops"], row["alone_flops"], said["accuracy"]["final"]),
            ]
            for row in run.held_out()
        ]
    write_csv(RESULTS / "held-out" / "runs.csv", COLUMNS, found)


if __name__ == "__main__":
    joined(Path(sys.argv[1]))
