"""Federated LoRA on texts: runs.csv, of comparisons by `quick/lora` and, of heads without LoRA, by
`benchmarks/text-head.yaml`.

    python -m benchmarks.results.lora FOLDER...

puts those comparisons' completed runs into runs.csv."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.results.page import (
    RESULTS,
    BySeed,
    Page,
    Row,
    by_seed,
    completed,
    difference,
    estimate,
    forest,
    merged,
    percent,
    points,
)
from pfedlora_flwr.methods import registry
from pfedlora_flwr.runs.result import best_round

KEYS = ("method", "train", "head", "alpha", "start", "lr", "sharing", "seed")
COLUMNS = (
    *(*KEYS, "validation", "test", "best_round", "final", "visits", "error_mean"),
    *("parameters_up", "parameters_down", "operations"),
)
COUNT = "at_best_validation"
USUAL = {"train": "lora", "head": "shared", "alpha": "", "start": "each", "sharing": "mean"}
HEAD = {"train": "head", "method": "lg_fedavg"}
"""A shared head without LoRA."""
ALONE = {"fedex_lora": "fedit", "fedalt": "standalone"}
"""Whose runs a method is with `sharing=none`, to the bit."""


def make(page: Page) -> None:
    every = page.rows("runs.csv")
    usual = ("train", "alpha", "start")
    rows = [row for row in every if all(row[key] == USUAL[key] for key in usual)]
    tables = {(row["head"], row["lr"]) for row in rows if row["method"] == "lg_fedavg"}
    for head, lr in sorted(tables):
        of = [row for row in rows if (row["head"], row["lr"]) == (head, lr)]
        # a head that is private or shared is the same to Standalone
        seeds = {row["seed"] for row in of}
        run = {row["seed"] for row in of if row["method"] == "standalone"}
        of += [
            row
            for row in rows
            if (row["method"], row["lr"]) == ("standalone", lr)
            and row["head"] != head
            and row["seed"] in seeds - run
        ]
        bare = by_seed(every, "test", **HEAD, lr=lr, sharing="mean") if head == "shared" else {}
        page.whole(
            f"{head}-{lr}",
            (
                *("method", "with sharing", "`sharing=none`", "gain, points", "− Standalone"),
                *(["− head without LoRA"] if bare else []),
                *("error", "up a visit", "down a visit"),
            ),
            list(lines(page, of, bare)),
        )
        means = {
            name: by_seed(of, "test", method=name, sharing="mean")
            for name in {row["method"] for row in of}
        }
        for mean in means.values():
            for other in ("lg_fedavg", "fedit"):
                if other in means:
                    page.says(difference(mean, means[other]))
    shown = [row for row in rows if (row["head"], row["lr"]) == ("shared", "0.01")]
    names = registry.ordered({row["method"] for row in shown} - {"standalone"})
    panel = [
        (
            registry.title(name),
            difference(
                by_seed(shown, "test", method=name, sharing="mean"),
                _tests(alone_of(shown, name)),
            ),
        )
        for name in names
    ]
    page.picture(
        "gains.png",
        lambda to: forest({"rate 0.01": panel}, "points by sharing", to / "gains.png"),
    )
    own = by_seed(rows, "test", method="fedalt", lr="0.003", **USUAL)
    alike = [row for row in every if row["start"] == "architecture"]
    fedalt, none = (by_seed(alike, "test", method=name) for name in ("fedalt", "standalone"))
    page.says(estimate(fedalt), difference(fedalt, none), difference(own, fedalt))
    rates(page, every)
    after_the_last_round(page, every)
    page.settings("0.003")


def rates(page: Page, rows: list[Row]) -> None:
    """A shared head without LoRA, and FedIT, at each rate."""

    def of_lora(method: str, lr: str) -> BySeed:
        return by_seed(rows, "test", method=method, lr=lr, **USUAL)

    def of_head(lr: str, sharing: str = "mean", **method: str) -> BySeed:
        return by_seed(rows, "test", **HEAD | method, lr=lr, sharing=sharing)

    cells = []
    every = sorted({row["lr"] for row in rows}, key=float)
    for lr in every:
        head, none, lora = of_head(lr), of_head(lr, "none"), of_lora("fedit", lr)
        alone = of_head(lr, method="standalone")
        shown = (percent(estimate(values)) if values else "" for values in (alone, none, head))
        gain = points(difference(head, none)) if none else ""
        cells.append([lr, *shown, gain, percent(estimate(lora)) if lora else ""])
        if head and lora:
            page.says(difference(lora, head))
        if head and (private := of_lora("lg_fedavg", lr)):
            page.says(difference(private, head))
    header = ("Standalone", "`sharing=none`", "head shared", "gain, points", "FedIT, head and LoRA")
    page.table("rates", ("rate", *header), cells)


def after_the_last_round(page: Page, rows: list[Row]) -> None:
    """At 0.01, of the methods that are less accurate then than at their best round."""
    head = by_seed(rows, "final", **HEAD, lr="0.01", sharing="mean")
    where = {key: value for key, value in USUAL.items() if key != "sharing"} | {"lr": "0.01"}
    of = [row for row in rows if all(row[key] == value for key, value in where.items())]
    for method in ("fedsa_lora", "fedalt"):
        mean = by_seed(of, "final", method=method, sharing="mean")
        none = by_seed(alone_of(of, method), "final")
        page.says(estimate(mean), difference(mean, none), difference(mean, head))


def lines(page: Page, rows: list[Row], bare: BySeed) -> Iterator[list[str]]:
    """Of each method its cells; `bare`: what a shared head without LoRA has, if it is compared."""
    alone = _tests(row for row in rows if row["method"] == "standalone")
    yield ["Standalone", percent(estimate(alone)), *[""] * (4 if bare else 3), "–", "0", "0"]
    for method in registry.ordered({row["method"] for row in rows} - {"standalone"}):
        own = [row for row in rows if row["method"] == method]
        mean = [row for row in own if row["sharing"] == "mean"]
        none = alone_of(rows, method)
        gain, lead = difference(_tests(mean), _tests(none)), difference(_tests(mean), alone)
        page.says(*map(estimate, map(_tests, (mean, none))), gain, lead, seeds=True)
        yield [
            registry.title(method),
            *(percent(estimate(_tests(each))) for each in (mean, none)),
            *map(points, (gain, lead, *([difference(_tests(mean), bare)] if bare else []))),
            _error(mean, "error_mean"),
            *(f"{_visit(mean, f'parameters_{way}'):,.0f}" for way in ("up", "down")),
        ]


def alone_of(rows: list[Row], method: str) -> list[Row]:
    """A method's runs without sharing; for seeds that have none, another method's that are the
    same."""
    own = [row for row in rows if (row["method"], row["sharing"]) == (method, "none")]
    if method not in ALONE:
        return own
    run = {row["seed"] for row in own}
    sharing = {"fedit": "none", "standalone": "mean"}
    same = ALONE[method], sharing[ALONE[method]]
    there = [row for row in rows if (row["method"], row["sharing"]) == same]
    return own + [row for row in there if row["seed"] not in run]


def _tests(rows: Iterable[Row]) -> BySeed:
    return by_seed(rows, "test")


def _error(rows: list[Row], name: str) -> str:
    """The mean over the seeds."""
    known = [float(row[name]) for row in rows if row[name]]
    return f"{statistics.fmean(known):.3f}" if known else "–"


def _visit(rows: list[Row], name: str) -> float:
    """Numbers of one client's visit, the mean over the runs."""
    return statistics.fmean(int(row[name]) / int(row["visits"]) for row in rows)


def joined(folders: Iterable[Path]) -> None:
    """Puts the completed runs in those folders among those of runs.csv."""
    found = list[list[object]]()
    for run, said in (each for folder in folders for each in completed(folder)):
        e, rounds = run.experiment(), [*run.rounds()]
        best = best_round(e, rounds)
        errors = [error for row in rounds if (error := row.get("aggregation_error")) is not None]
        sent = said["communication"]
        lora = (e.lora.head, e.lora.alpha or "") if e.train == "lora" else ("", "")
        found.append(
            [
                *(e.method, e.train, *lora, e.initial_models, e.lr, e.sharing, e.seed),
                *(best["validation_accuracy"], said["accuracy"][COUNT]),
                *(best["round"], said["accuracy"]["final"]),
                sum(len(row["admitted"]) for row in rounds),
                statistics.fmean(errors) if errors else "",
                *(sent[f"parameters_{way}"] for way in ("up", "down")),
                sum(row["flops"] for row in rounds),
            ]
        )
    merged(RESULTS / "lora" / "runs.csv", COLUMNS, KEYS, found)


if __name__ == "__main__":
    joined(map(Path, sys.argv[1:]))
