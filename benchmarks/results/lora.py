"""Federated LoRA on texts: runs.csv, of comparisons by `quick/lora`; and rates.csv, of shared heads
without LoRA and of FedIT at several rates, by `benchmarks/text-head.yaml` and `quick/lora`.

python -m benchmarks.results.lora runs.csv|rates.csv FOLDER..."""

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
    bonferroni,
    by_seed,
    completed,
    difference,
    estimate,
    percent,
    points,
    write_csv,
)
from pfedlora_flwr.methods import registry
from pfedlora_flwr.runs.result import best_round

KEYS = ("method", "head", "start", "lr", "sharing", "seed")
COLUMNS = (
    *(*KEYS, "validation", "test", "sampled_rounds"),
    *("error_first", "error_mean", "parameters_up", "parameters_down"),
)
TRIED = (
    *("method", "train", "alpha", "lr", "sharing", "seed"),
    *("validation", "test", "parameters_up", "sampled_rounds"),
)
"""Columns of rates.csv."""
COUNT = "at_best_validation"
TESTS = 10
"""Gains of a table."""
USUAL = {"head": "shared", "start": "each", "lr": "0.003", "sharing": "mean"}
ALONE = {"fedex_lora": "fedit", "fedalt": "standalone"}
"""Whose runs a method is with `sharing=none`, to the bit."""


def make(page: Page) -> None:
    every = page.rows("runs.csv")
    rows = [row for row in every if row["start"] == "each"]
    for head, lr in sorted({(row["head"], row["lr"]) for row in rows}):
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
        bare = bare_head(page, lr) if head == "shared" else {}
        page.table(
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
    own = by_seed(rows, "test", method="fedalt", **USUAL)
    alike = [row for row in every if row["start"] == "architecture"]
    fedalt, none = (by_seed(alike, "test", method=name) for name in ("fedalt", "standalone"))
    page.says(estimate(fedalt), difference(fedalt, none), difference(own, fedalt))
    rates(page, rows)
    page.settings("0.003")


def bare_head(page: Page, lr: str) -> BySeed:
    """What a shared head without LoRA has at a rate."""
    of_head = {"method": "lg_fedavg", "train": "head", "sharing": "mean"}
    return by_seed(page.rows("rates.csv"), "test", lr=lr, **of_head)


def rates(page: Page, compared: list[Row]) -> None:
    """A shared head without LoRA, and FedIT, at each rate.

    compared: rows of runs.csv, which have FedIT at the rates of its tables."""
    tried = page.rows("rates.csv")

    def of(method: str, lr: str, sharing: str = "mean") -> BySeed:
        return by_seed(tried, "test", method=method, alpha="", lr=lr, sharing=sharing)

    def of_fedit(lr: str) -> BySeed:
        return of("fedit", lr) or by_seed(compared, "test", method="fedit", **USUAL | {"lr": lr})

    cells = []
    every = sorted({row["lr"] for row in tried}, key=float)
    for lr in every:
        alone, head, none, lora = (
            *(of("standalone", lr), of("lg_fedavg", lr), of("lg_fedavg", lr, "none")),
            of_fedit(lr),
        )
        shown = (percent(estimate(values)) if values else "" for values in (alone, none, head))
        gain = points(difference(head, none)) if none else ""
        cells.append([lr, *shown, gain, percent(estimate(lora)) if lora else ""])
        for other in filter(None, map(of_fedit, every)):
            page.says(*([difference(head, other)] if head else []))
    usual_head = by_seed(compared, "test", method="lg_fedavg", **USUAL)
    page.says(difference(usual_head, bare_head(page, USUAL["lr"])))
    header = ("Standalone", "`sharing=none`", "head shared", "gain, points", "FedIT, head and LoRA")
    page.table("rates", ("rate", *header), cells)
    page.settings(*every)
    for row in tried:
        page.says(100 * float(row["test"]))


def lines(page: Page, rows: list[Row], bare: BySeed) -> Iterator[list[str]]:
    """Of each method its cells; `bare`: what a shared head without LoRA has, if it is compared."""
    alone = _tests(row for row in rows if row["method"] == "standalone")
    page.says(estimate(alone), seeds=True)
    yield ["Standalone", percent(estimate(alone)), *[""] * (4 if bare else 3), "–", "0", "0"]
    for method in registry.ordered({row["method"] for row in rows} - {"standalone"}):
        own = [row for row in rows if row["method"] == method]
        mean = [row for row in own if row["sharing"] == "mean"]
        none = [row for row in own if row["sharing"] == "none"]
        run = {row["seed"] for row in none}
        none += [row for row in same_alone(rows, method) if row["seed"] not in run]
        none.sort(key=lambda row: row["seed"])
        gain, lead = difference(_tests(mean), _tests(none)), difference(_tests(mean), alone)
        page.says(*map(estimate, map(_tests, (mean, none))), gain, lead, seeds=True)
        if gain.half is not None:
            page.says(bonferroni(gain, TESTS))
        yield [
            registry.title(method),
            *(percent(estimate(_tests(each))) for each in (mean, none)),
            *map(points, (gain, lead, *([difference(_tests(mean), bare)] if bare else []))),
            _error(mean, "error_mean"),
            *(f"{_visit(mean, f'parameters_{way}'):,.0f}" for way in ("up", "down")),
        ]


def same_alone(rows: list[Row], method: str) -> list[Row]:
    """Of another method the runs that this one's are alone."""
    if method not in ALONE:
        return []
    sharing = {"fedit": "none", "standalone": "mean"}
    same = ALONE[method]
    return [row for row in rows if (row["method"], row["sharing"]) == (same, sharing[same])]


def _tests(rows: Iterable[Row]) -> BySeed:
    return by_seed(rows, "test")


def _error(rows: list[Row], name: str) -> str:
    """The mean over the seeds."""
    known = [float(row[name]) for row in rows if row[name]]
    return f"{statistics.fmean(known):.3f}" if known else "–"


def _visit(rows: list[Row], name: str) -> float:
    """Numbers of one client's visit, the mean over the runs: ten clients in every round."""
    return statistics.fmean(int(row[name]) / int(row["sampled_rounds"]) for row in rows)


def joined(folder: Path) -> None:
    """Puts the completed runs in that folder among those of runs.csv."""
    rows = Page(RESULTS / "lora").rows("runs.csv")
    found: dict[tuple[str, ...], list[object]] = {
        tuple(row[name] for name in KEYS): [*row.values()] for row in rows
    }
    for run, said in completed(folder):
        e, rounds = run.experiment(), [*run.rounds()]
        best = best_round(e, rounds)
        errors = [error for row in rounds if (error := row.get("aggregation_error")) is not None]
        sent = said["communication"]
        keys = e.method, e.lora_head, e.initial_models, str(e.lr), e.sharing, str(e.seed)
        found[keys] = [
            *keys,
            *(best["validation_accuracy"], said["accuracy"][COUNT]),
            sum(len(row["admitted"]) for row in rounds),
            *((errors[0], statistics.fmean(errors)) if errors else ("", "")),
            *(sent[f"parameters_{way}"] for way in ("up", "down")),
        ]
    write_csv(RESULTS / "lora" / "runs.csv", COLUMNS, found.values())


def tried(folders: Iterable[Path]) -> None:
    """Writes rates.csv of the completed runs in those folders."""
    rows = []
    for run, said in (each for folder in folders for each in completed(folder)):
        e, rounds = run.experiment(), [*run.rounds()]
        rows.append(
            [
                *(e.method, e.train, e.lora_alpha, e.lr, e.sharing, e.seed),
                *(best_round(e, rounds)["validation_accuracy"], said["accuracy"][COUNT]),
                said["communication"]["parameters_up"],
                sum(len(row["admitted"]) for row in rounds),
            ]
        )
    write_csv(RESULTS / "lora" / "rates.csv", TRIED, sorted(rows, key=str))


if __name__ == "__main__":
    what, *folders = sys.argv[1:]
    if what == "rates.csv":
        tried(map(Path, folders))
    else:
        for each in folders:
            joined(Path(each))
