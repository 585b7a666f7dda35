"""Federated LoRA on texts: runs.csv, of a comparison by `quick/lora`, one seed.

python -m benchmarks.results.lora FOLDER"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from benchmarks.results.page import RESULTS, Page, Row, completed, signed, write_csv
from pfedlora_flwr.methods import registry
from pfedlora_flwr.runs.result import best_round

KEYS = ("method", "head", "sharing", "seed")
COLUMNS = (
    *(*KEYS, "validation", "test", "sampled_rounds"),
    *("error_first", "error_mean", "parameters_up", "parameters_down"),
)
COUNT = "at_best_validation"
ERRORS = ("error_first", "error_mean")
ALONE = {"fedex_lora": "fedit", "fedalt": "standalone"}
"""Whose runs a method is with `sharing=none`, to the bit."""


def make(page: Page) -> None:
    rows = page.rows("runs.csv")
    (alone,) = [row for row in rows if row["method"] == "standalone"]
    lines = []
    for method in registry.ordered({row["method"] for row in rows} - {"standalone"}):
        of = {row["sharing"]: row for row in rows if row["method"] == method}
        mean, none = of.get("mean"), of.get("none") or same_alone(rows, method)
        gain = signed(_percent(mean) - _percent(none)) if mean and none else "not run"
        lines.append(
            [
                registry.title(method),
                f"{_percent(mean):.2f}" if mean else "not run",
                f"{_percent(none):.2f}" if none else "not run",
                gain,
                *(_error(mean, name) for name in ERRORS),
                *(
                    f"{_visit(mean, f'parameters_{way}'):,.0f}" if mean else "–"
                    for way in ("up", "down")
                ),
            ]
        )
        if mean and none:
            page.says(_percent(mean) - _percent(none))
    page.table(
        "methods",
        (
            *("method", "shared", "`sharing=none`", "gain, points"),
            *("error, round 1", "error, mean", "up a visit", "down a visit"),
        ),
        lines,
    )
    page.says(*map(_percent, rows), _percent(alone))
    page.settings("0.003")


def same_alone(rows: list[Row], method: str) -> Row | None:
    """Of another method the run that this one's is alone."""
    sharing = {"fedit": "none", "standalone": "mean"}
    found = [
        row
        for row in rows
        if row["method"] == ALONE.get(method) and row["sharing"] == sharing[row["method"]]
    ]
    return found[0] if found else None


def _percent(row: Row) -> float:
    return 100 * float(row["test"])


def _error(row: Row | None, name: str) -> str:
    if row is None or not row[name]:
        return "–"
    return f"{float(row[name]):.3f}"


def _visit(row: Row, name: str) -> float:
    """Numbers of one client's visit, the mean over the run: ten clients in every round."""
    return int(row[name]) / int(row["sampled_rounds"])


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
        found[e.method, e.lora_head, e.sharing, str(e.seed)] = [
            *(e.method, e.lora_head, e.sharing, e.seed),
            *(best["validation_accuracy"], said["accuracy"][COUNT]),
            sum(len(row["admitted"]) for row in rounds),
            *((errors[0], statistics.fmean(errors)) if errors else ("", "")),
            *(sent[f"parameters_{way}"] for way in ("up", "down")),
        ]
    write_csv(RESULTS / "lora" / "runs.csv", COLUMNS, found.values())


if __name__ == "__main__":
    joined(Path(sys.argv[1]))
