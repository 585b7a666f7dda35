"""Every method on every kind of input, of kinds.csv (`python -m benchmarks.kinds` writes it)."""

from __future__ import annotations

from benchmarks.results.page import Page
from pfedlora_flwr.methods import registry

KINDS = {"digits": "digits", "images": "64 pixels", "sensors": "sensors", "table": "table"}


SHOWN = ("Standalone", "pFedLoRA", "FedAvg", "FedProto", "pFedES", "majority class")


def make(page: Page) -> None:
    rows = page.rows("kinds.csv")
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    cell = {
        (row["method"], row["kind"]): f"{100 * float(row['accuracy']):.1f}"
        if row["accuracy"]
        else "refused"
        for row in rows
    }
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = [[registry.title(m), *(cell[m, kind] for kind in kinds)] for m in methods]
    majority = {row["kind"]: 100 * float(row["majority"]) for row in rows if row["majority"]}
    lines.append(["majority class", *(f"{majority[kind]:.1f}" for kind in kinds)])
    page.whole("accuracy", ("method", *kinds), lines)
    page.table("shown", ("method", *kinds), (line for line in lines if line[0] in SHOWN))
    page.says(
        min(100 * float(row["accuracy"]) - majority[row["kind"]] for row in rows if row["accuracy"])
    )
    page.says(100 / 120, 100 / 56)  # one test sample of the sensors, and of the table
