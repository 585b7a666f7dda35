"""What sharing gives each method, of the run tables: early on CIFAR-100, and on digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.results.page import (
    BySeed,
    Page,
    Row,
    bonferroni,
    by_seed,
    difference,
    estimate,
    points,
    signed,
)
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import gain_figure
from pfedlora_flwr.report.measures import Estimate

COUNT = "at_best_validation"
LEADING = ("pfedmoe", "fd", "fedproto", "fedssa", "fedtgp", "fedkd")
SCENARIOS = {"10": "N=10, C=100 %, E=1", "50": "N=50, C=20 %, E=2"}
DIFFERENCES = (("mean", "none"), ("mean", "start"))
BY_CONSTRUCTION = {
    "fd": ("none", "start"),
    "fedproto": ("start",),
    "fedssa": ("start",),
    "fedtgp": ("start",),
    "fedorgp": ("start",),
}
"""The controls that receive nothing, and so are Standalone's runs."""
Of = Mapping[str, BySeed]
"""By `mean`, `none`, `start` and `Standalone`."""


def make(page: Page) -> None:
    early(page)
    page.quotes("methods/cifar100", "30.75")
    page.quotes("leaderboard", "6.35 ± 1.25", "2.83 ± 1.82", "4.00 ± 0.61", "3.10 ± 0.45")
    page.quotes("sensitivity", "1.10 ± 0.41")
    digits(page)


def of(rows: Sequence[Row], method: str, count: str = COUNT, **where: str) -> Of:
    alone = by_seed(rows, count, method="standalone", sharing="mean", **where)
    same = BY_CONSTRUCTION.get(method, ())
    found = {"mean": by_seed(rows, count, method=method, sharing="mean", **where)}
    for kind in ("none", "start"):
        ran = by_seed(rows, count, method=method, sharing=kind, **where)
        found[kind] = alone if kind in same else ran
    return found | {"Standalone": alone}


def early(page: Page) -> None:
    rows = page.rows("cifar100-runs.csv")
    lines = []
    panel: dict[str, dict[str, Estimate]] = {}
    for method in LEADING:
        found = of(rows, method)
        gain = points(difference(found["mean"], found["none"]))
        if method == "fd":
            cells = ["= Standalone", f"{gain}, its lead by construction", "–"]
        else:
            none = 100 * estimate(found["none"]).mean
            cells = [f"{none:.2f}", gain, points(difference(found["none"], found["Standalone"]))]
        lines.append([registry.title(method), f"{100 * estimate(found['mean']).mean:.2f}", *cells])
    as_it_is = 100 * estimate(of(rows, "pfedlora")["mean"]).mean
    lines.append(["pFedLoRA", f"{as_it_is:.2f}", "failed in round 17", "", ""])
    lines.append(["a variant of ours", *variant(page)])
    header = ("method", "as it is", "`sharing=none`", "gain from sharing", "none − Standalone")
    page.table("early", header, lines[:6])
    for method in dict.fromkeys(row["method"] for row in rows):
        found = of(rows, method)
        if method in LEADING:
            panel[registry.title(method)] = beside_standalone(found, ("mean", "none"))
    page.picture(
        "cifar100.png",
        lambda folder: gain_figure.draw({"all runs": panel}, folder, "a", "{} − Standalone"),
    )


def variant(page: Page) -> list[str]:
    """The row of the variant, of the rounds that the page of all methods on CIFAR-100 keeps."""
    name = "rows=classes features=normalised"
    path = page.folder.parent / "methods" / "cifar100"
    last = {
        row["run"]: 100 * float(row["accuracy"])
        for row in Page(path).rows("rounds.csv")
        if row["round"] == "30"
    }
    mean, none, alone = last[name], last[f"{name}, sharing=none"], last["Standalone"]
    return [f"{mean:.2f}", f"{none:.2f}", signed(mean - none), signed(none - alone)]


def beside_standalone(found: Of, kinds: Sequence[str]) -> dict[str, Estimate]:
    return {kind: difference(found[kind], found["Standalone"]) for kind in kinds}


def digits(page: Page) -> None:
    rows = page.rows("digits-runs.csv")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    gains: dict[str, dict[str, dict[str, Estimate]]] = {}
    beside: dict[str, dict[str, dict[str, Estimate]]] = {}
    lines = [[registry.title(method)] for method in methods]
    for clients, scenario in SCENARIOS.items():
        for line, method in zip(lines, methods, strict=True):
            found = of(rows, method, clients=clients)
            line.append(f"{100 * estimate(found['mean']).mean:.2f}")
            if method == "standalone":
                line += ["–", "", ""]
                continue
            line.append(points(difference(found["mean"], found["Standalone"])))
            for a, b in DIFFERENCES:
                mark = " ¹" if b in BY_CONSTRUCTION.get(method, ()) else ""
                line.append(points(difference(found[a], found[b])) + mark)
            title = registry.title(method)
            gains.setdefault(scenario, {})[title] = {
                b: difference(found[a], found[b]) for a, b in DIFFERENCES
            }
            beside.setdefault(scenario, {})[title] = beside_standalone(
                found, ("mean", "none", "start")
            )
    beside_untrained = of(rows, "fedkd", clients="50")
    page.says(difference(beside_untrained["start"], beside_untrained["Standalone"]))
    for count in (COUNT, "final"):
        found = of(rows, "fd", count, clients="50")
        lead = difference(found["mean"], found["Standalone"])
        page.says(bonferroni(lead, len(methods) - 1))
    names = ("− Standalone", "mean − none", "mean − start")
    header = ("method", "N = 10: as it is", *names, "N = 50: as it is", *names)
    page.whole("digits", header, lines)
    page.picture("digits.png", lambda folder: gain_figure.draw(gains, folder, "a", "mean − {}"))
    page.picture(
        "digits-standalone.png",
        lambda folder: gain_figure.draw(beside, folder, "a", "{} − Standalone"),
    )
