"""Accuracy under differential privacy: of whole clients, runs.csv (by `python -m
benchmarks.dp_utility`); of single records, records.csv (by `python -m benchmarks.dp_records`)."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.results.page import (
    Page,
    Row,
    by_seed,
    difference,
    estimate,
    percent,
    points,
)

CELLS = {
    "plain": "without `dp`",
    "inf": "ε = ∞: clipping, equal weights, no noise",
    "eps8": "ε = 8",
    "eps2": "ε = 2",
    "start": "no adapter",
    "none": "`sharing=none`",
    "noise8": "noise alone, as for ε = 8",
    "noise2": "noise alone, as for ε = 2",
}
RECORDS = {name: words for name, words in CELLS.items() if name != "noise2"} | {
    "inf": "ε = ∞: clipping, secret batches, no noise"
}
CLIENTS, CLIP, SIZE = 50, 0.25, 170


def make(page: Page) -> None:
    rows, records = page.rows("runs.csv"), page.rows("records.csv")
    _accuracies(page, "accuracy", rows, CELLS)
    _accuracies(page, "records", records, RECORDS)
    noises = []
    for row in _noised(rows):
        z = float(row["noise"])
        ratio = z * SIZE**0.5 / CLIENTS
        noises.append(
            [
                CELLS[row["cell"]],
                row["seed"],
                row["participations_max"],
                f"{float(row['epsilon']):.4f}",
                f"{z:.3f}",
                f"{ratio:.2f}",
            ]
        )
    header = ("run", "seed", "participations", "ε of the run", "z", "noise of the mean / clip")
    page.table("noise", header, noises)
    page.table(
        "records-noise",
        header[:-1],
        (
            [
                CELLS[row["cell"]],
                row["seed"],
                row["participations_max"],
                f"{float(row['epsilon']):.4f}",
                f"{float(row['noise']):.2f}",
            ]
            for row in _noised(records)
        ),
    )
    page.settings("0.3", "0.25", "0.003")


def _accuracies(page: Page, name: str, rows: list[Row], cells: Mapping[str, str]) -> None:
    """The table of the cells, and what the prose may say of them."""
    found = {cell: by_seed(rows, "accuracy", cell=cell) for cell in cells}
    beside, lines = found["start"], []
    for cell, words in cells.items():
        gain = "" if cell == "start" else points(difference(found[cell], beside))
        lines.append([words, percent(estimate(found[cell])), gain])
        page.says(estimate(found[cell]), difference(found[cell], beside), seeds=True)
    page.table(name, ("run", "accuracy", "beside no adapter"), lines)
    for better, worse in (
        ("eps8", "noise8"),
        ("eps2", "noise2"),
        ("inf", "eps8"),
        ("inf", "eps2"),
        ("plain", "inf"),
        ("plain", "none"),
        ("plain", "eps8"),
        ("plain", "eps2"),
        ("eps8", "eps2"),
        ("eps8", "none"),
        ("eps2", "none"),
    ):
        if {better, worse} <= found.keys():
            page.says(difference(found[better], found[worse]), seeds=True)


def _noised(rows: list[Row]) -> list[Row]:
    return [row for cell in ("eps8", "eps2") for row in rows if row["cell"] == cell]
