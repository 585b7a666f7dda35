"""Federated LoRA on texts: runs.csv, of a comparison by `quick/lora`, one seed.

python -m benchmarks.results.lora FOLDER"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from benchmarks.results.page import RESULTS, Page, Row, signed, write_csv
from pfedlora_flwr.methods import registry
from pfedlora_flwr.runs.directory import RunDirectory

COLUMNS = (
    *("method", "head", "sharing", "seed", "validation", "test", "sampled_rounds"),
    *("error_first", "error_mean", "parameters_up", "parameters_down"),
)
COUNT = "at_best_validation"
ERRORS = ("error_first", "error_mean")


def make(page: Page) -> None:
    rows = page.rows("runs.csv")
    (alone,) = [row for row in rows if row["method"] == "standalone"]
    lines = []
    for method in registry.ordered({row["method"] for row in rows} - {"standalone"}):
        of = {row["sharing"]: row for row in rows if row["method"] == method}
        mean, none = of.get("mean"), of.get("none")
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
    """Writes runs.csv of the completed runs in that folder."""
    found = []
    for result in sorted(folder.rglob("result.json")):
        run = RunDirectory(result.parent)
        said, e, rounds = json.loads(result.read_text()), run.experiment(), [*run.rounds()]
        if said["status"] != "completed":
            continue
        best = next(
            row for row in rounds if row["round"] == said["accuracy"]["best_validation_round"]
        )
        errors = [error for row in rounds if (error := row.get("aggregation_error")) is not None]
        sent = said["communication"]
        found.append(
            [
                *(e.method, e.lora_head, e.sharing, e.seed),
                *(best["validation_accuracy"], said["accuracy"][COUNT]),
                sum(len(row["admitted"]) for row in rounds),
                *((errors[0], statistics.fmean(errors)) if errors else ("", "")),
                *(sent[f"parameters_{way}"] for way in ("up", "down")),
            ]
        )
    write_csv(RESULTS / "lora" / "runs.csv", COLUMNS, found)


if __name__ == "__main__":
    joined(Path(sys.argv[1]))
