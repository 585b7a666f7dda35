"""What clients that lie cost the honest ones: runs.csv, by `python -m benchmarks.attacks`."""

from __future__ import annotations

from statistics import fmean

from benchmarks.attacks import ATTACKS, BOUND, CLAIM, METHODS, RULES
from benchmarks.results.page import BySeed, Page, Row, difference, estimate, points
from pfedlora_flwr.methods import registry
from tests.federation.malice import FLIPPED, LAZY

WORDS = {
    "turned": "−1 ×",
    "turned, nine times": "−9 ×",
    "turned, ninety times": "−90 ×",
    CLAIM: "−1 ×, n_k = 10⁶",
    FLIPPED: "flipped labels",
    LAZY: "lazy",
}
SHOWN = ("mean", "trimmed mean")
Cell = tuple[str, str, str, int]
"""method, rule, lie, number of liars; of the lazy and what they are compared with, of five."""


def make(page: Page) -> None:
    runs = _by_cell(page.rows("runs.csv"))
    header = ("method", "rule", "no liar", *(WORDS[lie] for lie in ATTACKS))
    for liars in (1, 2):
        lines = [
            [registry.title(method), rule, *cells]
            for method in METHODS
            for rule in RULES
            if any(cells := [_lost(runs, method, rule, lie, liars) for lie in ("", *ATTACKS)])
        ]
        page.whole(f"{liars}-of-ten", header, lines)
        if liars == 2:
            shown = ((*line[:2], *line[4:7]) for line in lines if line[1] in SHOWN)
            page.table("two", (*header[:2], *header[4:7]), shown)
    rules = [rule for rule in RULES if rule != BOUND]
    lazy = [
        [registry.title(method), *(_lost(runs, method, rule, LAZY, 3) for rule in rules)]
        for method in METHODS
    ]
    page.whole("lazy", ("method", *rules), lazy)
    cost = [
        [registry.title(method), *(_lost(runs, method, rule, "", 0) for rule in rules[1:])]
        for method in METHODS
    ]
    page.table("cost", ("method", *rules[1:]), cost)
    for method in ("standalone", *METHODS):
        page.says(estimate(_honest(runs[method, "mean", "", 0], 0)))
    page.settings("0.5", "0.003")


def _by_cell(rows: list[Row]) -> dict[Cell, list[Row]]:
    found: dict[Cell, list[Row]] = {}
    for row in rows:
        lie = row["lie"] or (f"{LAZY}: none" if row["clients"] == "5" else "")
        found.setdefault((row["method"], row["rule"], lie, int(row["liars"])), []).append(row)
    return found


def _honest(rows: list[Row], liars: int) -> BySeed:
    """By seed the mean accuracy of the clients from number `liars` on, in [0, 1], where all of them
    have one and the run did not end."""
    found = {}
    for row in rows:
        accuracies = row["accuracies"].split()[liars:]
        if not row["ended"] and "–" not in accuracies:
            found[row["seed"]] = fmean(map(float, accuracies))
    return found


def _lost(runs: dict[Cell, list[Row]], method: str, rule: str, lie: str, liars: int) -> str:
    """Points of the honest clients against the same clients by the mean without liars; how many
    runs ended, or left honest clients out. Empty where the rule was not tried."""
    of_five = lie == LAZY
    rows = runs.get((method, rule, lie, liars if lie else 0))
    if not rows:
        return ""
    beside = runs[method, "mean", f"{LAZY}: none" if of_five else "", 0]
    ours = _honest(rows, liars)
    gone = f"{len(rows) - len(ours)} of {len(rows)} ended" if len(ours) < len(rows) else ""
    if not ours:
        return gone
    theirs = _honest(beside, liars)
    told = "0" if ours == theirs else points(difference(ours, theirs))
    return f"{told} ({gone})" if gone else told
