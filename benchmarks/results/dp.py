"""Accuracy under differential privacy: of whole clients, runs.csv (by `python -m
benchmarks.dp_utility`); of single records, records.csv (by `python -m benchmarks.dp_records`)."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.results.page import (
    Page,
    Panels,
    Row,
    by_seed,
    difference,
    estimate,
    forest,
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
SHOWN = ("plain", "inf", "eps8", "eps2", "none", "noise8")
LEVELS = {"whole clients": ("clients", CELLS), "single records": ("records", RECORDS)}
CLIENTS, CLIP, SIZE = 50, 0.25, 170


def make(page: Page) -> None:
    found = {
        level: _accuracies(page, name, page.rows(file), cells)
        for (level, (name, cells)), file in zip(
            LEVELS.items(), ("runs.csv", "records.csv"), strict=True
        )
    }
    lines = [
        [CELLS[cell].split(":")[0], *(x for of in found.values() for x in of[cell])]
        for cell in SHOWN
    ]
    header = [f"{level}, {what}" for level in LEVELS for what in ("accuracy", "− no adapter")]
    page.table("accuracy", ("run", *header), lines)
    noises = []
    for name, rows in zip(LEVELS, (page.rows("runs.csv"), page.rows("records.csv")), strict=True):
        for row in _noised(rows):
            z = float(row["noise"])
            ratio = f"{z * SIZE**0.5 / CLIENTS:.2f}" if name == "whole clients" else ""
            ends = row["participations_max"], f"{float(row['epsilon']):.4f}", f"{z:.3f}", ratio
            noises.append([name, CELLS[row["cell"]], row["seed"], *ends])
    header = ["protects", "run", "seed", "participations", "ε of the run", "z"]
    page.whole("noise", (*header, "noise of the mean / clip"), noises)
    page.picture("dp.png", lambda to: forest(panels(page), "points over no adapter", to / "dp.png"))
    page.settings("0.3", "0.25", "0.003")


def _accuracies(
    page: Page, name: str, rows: list[Row], cells: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """The table of the cells, which is returned, and what the prose may say of them."""
    found = {cell: by_seed(rows, "accuracy", cell=cell) for cell in cells}
    beside, lines = found["start"], {}
    for cell in cells:
        gain = "" if cell == "start" else points(difference(found[cell], beside))
        lines[cell] = percent(estimate(found[cell])), gain
        page.says(estimate(found[cell]), difference(found[cell], beside), seeds=True)
    table = [[words, *lines[cell]] for cell, words in cells.items()]
    page.whole(name, ("run", "accuracy", "minus no adapter"), table)
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
    return lines


def panels(page: Page) -> Panels:
    """What each run is above having no adapter, by level."""
    found = {}
    for level, file in zip(LEVELS, ("runs.csv", "records.csv"), strict=True):
        of = {cell: by_seed(page.rows(file), "accuracy", cell=cell) for cell in (*SHOWN, "start")}
        found[level] = [
            (CELLS[cell].split(":")[0], difference(of[cell], of["start"])) for cell in SHOWN
        ]
    return found


def _noised(rows: list[Row]) -> list[Row]:
    return [row for cell in ("eps8", "eps2") for row in rows if row["cell"] == cell]
