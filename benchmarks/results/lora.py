"""Federated LoRA on texts: runs.csv, of a comparison by `quick/lora`.

python -m benchmarks.results.lora FOLDER"""

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

KEYS = ("method", "head", "start", "sharing", "seed")
COLUMNS = (
    *(*KEYS, "validation", "test", "sampled_rounds"),
    *("error_first", "error_mean", "parameters_up", "parameters_down"),
)
COUNT = "at_best_validation"
TESTS = 10
"""Gains of a table."""
ERRORS = ("error_first", "error_mean")
ALONE = {"fedex_lora": "fedit", "fedalt": "standalone"}
"""Whose runs a method is with `sharing=none`, to the bit."""


def make(page: Page) -> None:
    every = page.rows("runs.csv")
    rows = [row for row in every if row["start"] == "each"]
    alone = [row for row in rows if row["method"] == "standalone"]
    for head in sorted({row["head"] for row in rows}):
        of = [row for row in rows if row["head"] == head]
        # a head that is private or shared is the same to Standalone
        run = {row["seed"] for row in of if row["method"] == "standalone"}
        of += [row for row in alone if row["head"] != head and row["seed"] not in run]
        page.table(
            head,
            (
                *("method", "with sharing", "`sharing=none`", "gain, points", "− Standalone"),
                *("error, round 1", "error, mean", "up a visit", "down a visit"),
            ),
            list(lines(page, of)),
        )
        heads = by_seed(of, "test", method="lg_fedavg", sharing="mean")
        for method in {row["method"] for row in of}:
            mean = by_seed(of, "test", method=method, sharing="mean")
            page.says(difference(mean, heads))
    fedit, *others = (
        by_seed(rows, "test", method=name, head="shared", sharing="mean")
        for name in (
            "fedit",
            "feddpa",
            "fedalt",
            "fedex_lora",
            "rolora",
            "ffa_lora",
            "flexlora",
            "flora",
        )
    )
    page.says(*(difference(other, fedit) for other in others))
    alike = [row for row in every if row["start"] == "architecture"]
    fedalt, none = (by_seed(alike, "test", method=name) for name in ("fedalt", "standalone"))
    page.says(estimate(fedalt), difference(fedalt, none), difference(others[1], fedalt))
    page.settings("0.003")


def lines(page: Page, rows: list[Row]) -> Iterator[list[str]]:
    """Of each method its cells."""
    alone = _tests(row for row in rows if row["method"] == "standalone")
    page.says(estimate(alone), seeds=True)
    yield ["Standalone", percent(estimate(alone)), *[""] * 3, "–", "–", "0", "0"]
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
            *map(points, (gain, lead)),
            *(_error(mean, name) for name in ERRORS),
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
        keys = e.method, e.lora_head, e.initial_models, e.sharing, str(e.seed)
        found[keys] = [
            *keys,
            *(best["validation_accuracy"], said["accuracy"][COUNT]),
            sum(len(row["admitted"]) for row in rounds),
            *((errors[0], statistics.fmean(errors)) if errors else ("", "")),
            *(sent[f"parameters_{way}"] for way in ("up", "down")),
        ]
    write_csv(RESULTS / "lora" / "runs.csv", COLUMNS, found.values())


if __name__ == "__main__":
    joined(Path(sys.argv[1]))
