"""Standalone whose last layer reads normalised features, beside Standalone and beside the most
accurate variants of pFedLoRA, which read them: runs.csv, of a comparison by
`benchmarks/normalised.yaml`; and Standalone at a larger rate, rates.csv. Standalone and the
variants are in `docs/results/gain`.

    python -m benchmarks.results.normalised runs.csv|rates.csv FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.results.gain import CONFIRMED, FRESH, confirmed
from benchmarks.results.page import (
    RESULTS,
    Page,
    by_seed,
    difference,
    estimate,
    percent,
    points,
    signed,
)

NORMALISED = "benchmarks.variants:NormalisedStandalone"
COUNT = "at best validation"
VARIANTS = (
    "features=normalised",
    "rows=classes features=normalised",
    "rows=classes features=normalised mu=0.8",
    "rows=classes down=fixed features=normalised",
    "rows=classes down=fixed features=normalised server-lr=0.3",
)
"""Of the search on seed 0."""


def make(page: Page) -> None:
    gain = Page(RESULTS / "gain")
    alone = fractions(gain, "confirmed.csv", "standalone")
    control = fractions(page, "runs.csv", NORMALISED)
    fresh = [{seed: each[seed] for seed in FRESH} for each in (alone, control)]
    lead = difference(fresh[1], fresh[0])
    page.says(estimate(fresh[0]), estimate(fresh[1]), lead, seeds=True)
    page.table(
        "normalised",
        ("", "accuracy", "− Standalone"),
        [
            ["Standalone", percent(estimate(fresh[0])), ""],
            [
                "Standalone, normalised features",
                percent(estimate(fresh[1])),
                points(lead, seeds=True),
            ],
        ],
    )
    for variant in CONFIRMED:
        page.says(difference(fresh[1], fractions(gain, "confirmed.csv", variant)))
    first = {name: 100 * each["0"] for name, each in (("alone", alone), ("control", control))}
    tried = {row["method-options"]: row for row in gain.rows("tried.csv")}
    lines = [["Standalone, normalised features", f"{first['control']:.2f}", ""]]
    for options in VARIANTS:
        for kind, told in (("mean", ""), ("none", ", `sharing=none`")):
            if found := tried[options][f"{kind}, test"]:
                lead_of = float(found) - first["control"]
                page.says(float(found), lead_of)
                lines.append([f"`{options}`{told}", found, signed(lead_of)])
    page.says(*first.values(), first["control"] - first["alone"], 100 * alone["1"])
    page.says(*(100 * each for each in fractions(page, "rates.csv", "standalone").values()))
    page.settings("0.01", "0.03", "0.1")
    page.table("search", ("", "accuracy", "− Standalone, normalised"), lines)


def fractions(page: Page, file: str, variant: str) -> dict[str, float]:
    found = by_seed(page.rows(file), COUNT, variant=variant, sharing="mean")
    return {seed: value / 100 for seed, value in found.items()}


if __name__ == "__main__":
    file, folder = sys.argv[1:]
    confirmed([Path(folder)], RESULTS / "normalised" / file)
