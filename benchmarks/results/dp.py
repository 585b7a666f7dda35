"""Accuracy under differential privacy of whole clients, of runs.csv (`python -m
benchmarks.dp_utility` writes it)."""

from __future__ import annotations

from benchmarks.results.page import Page, by_seed, difference, estimate, percent, points

CELLS = {
    "plain": "without `dp`",
    "inf": "ε = ∞: clipping, equal weights, no noise",
    "eps8": "ε = 8",
    "eps2": "ε = 2",
    "start": "no adapter (as μ = 1)",
    "none": "`sharing=none`",
    "noise8": "noise alone, as for ε = 8",
    "noise2": "noise alone, as for ε = 2",
}
CLIENTS, CLIP, SIZE = 50, 0.25, 170


def make(page: Page) -> None:
    rows = page.rows("runs.csv")
    found = {cell: by_seed(rows, "accuracy", cell=cell) for cell in CELLS}
    beside = found["start"]
    lines = []
    for cell, name in CELLS.items():
        gain = "" if cell == "start" else points(difference(found[cell], beside))
        lines.append([name, percent(estimate(found[cell])), gain])
        page.says(estimate(found[cell]), difference(found[cell], beside), seeds=True)
    page.table("accuracy", ("run", "accuracy", "beside no adapter"), lines)
    for better, worse in (
        ("eps8", "noise8"),
        ("eps2", "noise2"),
        ("inf", "eps8"),
        ("plain", "inf"),
    ):
        page.says(difference(found[better], found[worse]), seeds=True)
    noises = []
    for cell in ("eps8", "eps2"):
        for row in (row for row in rows if row["cell"] == cell):
            z = float(row["noise"])
            ratio = z * SIZE**0.5 / CLIENTS
            noises.append(
                [
                    CELLS[cell],
                    row["seed"],
                    row["participations_max"],
                    f"{float(row['epsilon']):.4f}",
                    f"{z:.3f}",
                    f"{ratio:.2f}",
                ]
            )
    header = ("run", "seed", "participations", "ε of the run", "z", "noise of the mean / clip")
    page.table("noise", header, noises)
    page.settings("0.3", "0.25", "0.003")
