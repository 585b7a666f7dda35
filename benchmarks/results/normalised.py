"""Standalone whose last layer reads normalised features, beside Standalone and beside the most
accurate variants of pFedLoRA, which read them: runs.csv, of a comparison by
`benchmarks/normalised.yaml`; and Standalone at a larger rate, rates.csv. Standalone and the
variants are in `docs/results/gain`. And pFedLoRA+ and such a Standalone on the leaderboard:
plus.csv, a row a round.

    python -m benchmarks.results.normalised runs.csv|rates.csv FOLDER
    python -m benchmarks.results.normalised plus.csv FOLDER..."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.results.gain import CONFIRMED, FRESH, confirmed
from benchmarks.results.page import (
    OF_ROUND,
    RESULTS,
    BySeed,
    Page,
    Row,
    bonferroni,
    by_seed,
    difference,
    each_round,
    end_of,
    estimate,
    forest,
    last_within,
    merged,
    percent,
    points,
    signed,
)
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report.measures import Estimate

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
KEYS = ("method", "sharing", "seed")
LEADERS = ("fd", "fedproto", "pfedmoe", "fedmrl")
"""Of the leaderboard."""


def make(page: Page) -> None:
    features(page)
    plus(page)


def features(page: Page) -> None:
    gain = Page(RESULTS / "gain")
    alone = fractions(gain, "confirmed.csv", "standalone")
    control = fractions(page, "runs.csv", NORMALISED)
    fresh = [of_fresh(each) for each in (alone, control)]
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
                points(lead),
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
    page.whole("search", ("", "accuracy", "− Standalone, normalised"), lines)


def plus(page: Page) -> None:
    """pFedLoRA+ and the normalised Standalone in the leaderboard's setting: beside the control of
    the first, Standalone and others there."""
    board = Page(RESULTS / "leaderboard").rows("runs.csv")
    rounds = page.rows("plus.csv")
    mean, none, normalised = (
        seeds_of(rounds, *run)
        for run in (("pfedlora_plus", "mean"), ("pfedlora_plus", "none"), (NORMALISED, "mean"))
    )

    def there(column: str, method: str = "standalone") -> BySeed:
        return by_seed(board, column, method=method, sharing="mean")

    lines = [["Standalone", percent(estimate(there("at_best_validation"))), "", ""]]
    above: dict[str, list[str]] = {method: [] for method in (*LEADERS, NORMALISED)}
    for place, count in enumerate(("at_best_validation", "final")):
        ours, own, read = (
            {seed: end_of(rows)[place] for seed, rows in run.items()}
            for run in (mean, none, normalised)
        )
        leads = [difference(each, there(count)) for each in (ours, own, read)]
        gain = difference(ours, own)
        page.says(*map(estimate, (ours, own, read)), *leads, gain, seeds=True)
        page.says(*(bonferroni(each, 4) for each in (*leads, gain)))
        for method in LEADERS:
            page.says(difference(read, there(count, method)))
            above[method].append(points(difference(there(count, method), ours)))
        above[NORMALISED].append(points(difference(read, ours)))
        if place == 0:
            cells = [points(each) for each in (*leads, gain)]
            lines += [
                ["pFedLoRA+", percent(estimate(ours)), cells[0], cells[3]],
                ["pFedLoRA+, `sharing=none`", percent(estimate(own)), cells[1], ""],
                ["Standalone, normalised features", percent(estimate(read)), cells[2], ""],
            ]
    page.table("plus", ("", "accuracy", "− Standalone", "gain from sharing"), lines)
    most = there("flops")
    for method in LEADERS:
        flops = there("flops", method)
        above[method].append(f"{flops['0'] / most['0']:.2f}")
    above[NORMALISED].append(f"{float(normalised['0'][-1]['operations']) / most['0']:.2f}")
    ends = "at best validation", "after the last round"
    page.whole(
        "above",
        ("− pFedLoRA+", *ends, "operations of Standalone's, seed 0"),
        [[title(method), *cells] for method, cells in above.items()],
    )
    end = "at_best_validation"
    shown = [
        ("pFedLoRA+", {seed: end_of(rows)[0] for seed, rows in mean.items()}),
        ("pFedLoRA+, without sharing", {seed: end_of(rows)[0] for seed, rows in none.items()}),
        ("Standalone, normalised", {seed: end_of(rows)[0] for seed, rows in normalised.items()}),
        *((registry.title(method), there(end, method)) for method in LEADERS),
    ]
    panel = [(name, difference(values, there(end))) for name, values in shown]
    page.picture(
        "plus.png",
        lambda to: forest({"60 rounds": panel}, "points over Standalone", to / "plus.png"),
    )
    equal = {seed: float(last_within(rows, most[seed])["accuracy"]) for seed, rows in mean.items()}
    page.says(difference(equal, there("final")), seeds=True)
    page.says(*(float(rows[-1]["operations"]) / most[seed] for seed, rows in mean.items()))
    page.quotes("start", "0.58")


def lead_on_board() -> Estimate:
    """The normalised Standalone minus Standalone on the leaderboard, at the best validation
    accuracy."""
    board = Page(RESULTS / "leaderboard").rows("runs.csv")
    read = seeds_of(Page(RESULTS / "normalised").rows("plus.csv"), NORMALISED, "mean")
    alone = by_seed(board, "at_best_validation", method="standalone", sharing="mean")
    return difference({seed: end_of(rows)[0] for seed, rows in read.items()}, alone)


def seeds_of(rounds: list[Row], method: str, sharing: str) -> dict[str, list[Row]]:
    """A run's rows by seed."""
    found: dict[str, list[Row]] = {}
    for row in rounds:
        if (row["method"], row["sharing"]) == (method, sharing):
            found.setdefault(row["seed"], []).append(row)
    return found


def title(method: str) -> str:
    return "Standalone, normalised" if method == NORMALISED else registry.title(method)


def of_fresh(values: BySeed) -> BySeed:
    """Those of the seeds that chose nothing."""
    return {seed: values[seed] for seed in FRESH}


def fractions(page: Page, file: str, variant: str) -> dict[str, float]:
    found = by_seed(page.rows(file), COUNT, variant=variant, sharing="mean")
    return {seed: value / 100 for seed, value in found.items()}


if __name__ == "__main__":
    file, *given = sys.argv[1:]
    folders, target = [Path(folder) for folder in given], RESULTS / "normalised" / file
    if file == "plus.csv":
        rows = each_round(folders, lambda e: (e.method, e.sharing, e.seed))
        merged(target, (*KEYS, *OF_ROUND), (*KEYS, "round"), rows)
    else:
        confirmed(folders, target)
