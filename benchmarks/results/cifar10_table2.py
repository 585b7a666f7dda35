"""Four methods on CIFAR-10: accuracy beside the paper's cells, of runs.csv."""

from __future__ import annotations

from benchmarks.results.page import (
    Page,
    bonferroni,
    by_seed,
    difference,
    estimate,
    percent,
    points,
    signed,
)
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report.paper import ACCURACY

METHODS = ("standalone", "lg_fedavg", "fedproto", "pfedlora")
PAIRS = (("fedproto", "standalone"), ("pfedlora", "standalone"), ("pfedlora", "fedproto"))
CLIENTS = {"10": 0, "100": 2}
"""Their numbers, and the place of the paper's cell."""
PAPER = ACCURACY["heterogeneous"]["cifar10"]


def make(page: Page) -> None:
    runs = page.rows("runs.csv")
    lines: list[list[str]] = [[registry.title(method)] for method in METHODS]
    lines += [[f"{registry.title(a)} − {registry.title(b)}, points"] for a, b in PAIRS]
    for clients, place in CLIENTS.items():
        found = {
            (m, count): by_seed(runs, count, method=m, clients=clients)
            for m in METHODS
            for count in ("at_best_validation", "final")
        }
        best = {m: found[m, "at_best_validation"] for m in METHODS}
        cells = [[percent(estimate(best[m])), f"{printed(m, place):.2f}"] for m in METHODS]
        for a, b in PAIRS:
            apart = signed(printed(a, place) - printed(b, place))
            cells.append([points(difference(best[a], best[b])), apart])
            final = difference(found[a, "final"], found[b, "final"])
            page.says(final, bonferroni(final, len(PAIRS) * len(CLIENTS)))
        for line, more in zip(lines, cells, strict=True):
            line += more
        halves = [difference(best[a], best[b]).half or 0 for a, b in PAIRS]
        page.says(*(100 * half for half in (min(halves), max(halves))))
    header = ("test accuracy at best validation, %", "N = 10", "paper", "N = 100, C = 10 %")
    page.table("accuracy", (*header, "paper"), lines)
    page.settings("0.01", "0.9", "0.5", "7.41", "4.3")  # 4.3: of t, three seeds
    page.not_kept("0.15", "2.91", "0.40", "0.64")  # of single rounds, one run with μ = 0.9


def printed(method: str, place: int) -> float:
    """The paper's cell."""
    accuracy = PAPER[method][place]
    assert accuracy is not None
    return accuracy
