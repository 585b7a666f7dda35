"""The pilot on frozen pretrained backbones: pilot.csv, joined from three comparisons' reports, and
tried.csv, of single runs.

    python -m benchmarks.results.pretrained_pilot FOLDER

FOLDER has the comparisons' folders `logits`, `features` and `neck`, and `tried` with runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.results.page import RESULTS, Page, Row, signed, write_csv
from pfedlora_flwr.methods import registry
from pfedlora_flwr.runs.directory import RunDirectory

READS = {"logits": "pretrained logits", "features": "features", "neck": "a trained neck"}
SAMPLES = ("10", "30", "50")
OPTIONS = ("lr", "fedssa.mu", "fedssa.stable-rounds", "adapter.hidden-dim", "adapter.basis")
COLUMNS = (
    *("reads", "samples", "sharing", "method", "options", "seed"),
    *("validation", "test", "parameters_up", "parameters_down"),
)


def pilot(page: Page) -> None:
    rows = page.rows("pilot.csv")
    lines = []
    for reads, name in READS.items():
        of_reads = [row for row in rows if row["reads"] == reads]
        for method in registry.ordered({row["method"] for row in of_reads}):
            cells = [_cell(page, of_reads, method, n) for n in SAMPLES]
            lines.append([name, registry.title(method), *cells])
    page.whole("pilot", ("the head sees", "method", *(f"{n} samples" for n in SAMPLES)), lines)
    tried = sorted(page.rows("tried.csv"), key=lambda row: (row["reads"], row["method"]))
    page.whole(
        "tried",
        ("the head sees", "method", "options", "validation", "test"),
        (
            [
                READS[row["reads"]],
                registry.title(row["method"]),
                row["options"],
                *(f"{100 * float(row[part]):.2f}" for part in ("validation", "test")),
            ]
            for row in tried
        ),
    )
    for one in rows:
        for other in rows + tried:
            if one["samples"] == other["samples"]:
                page.says(_percent(one) - _percent(other))


def _percent(row: Row) -> float:
    return 100 * float(row["test"])


def _cell(page: Page, rows: list[Row], method: str, samples: str) -> str:
    """`66.88 (52.13): +14.75`; empty where nothing was run."""
    found = {
        row["sharing"]: _percent(row)
        for row in rows
        if (row["method"], row["samples"]) == (method, samples)
    }
    if "mean" not in found:
        return "not run"
    if "none" not in found:
        return f"{found['mean']:.2f}"
    gain = signed(found["mean"] - found["none"])
    return f"{found['mean']:.2f} ({found['none']:.2f}): {gain}"


def joined(folder: Path) -> None:
    """Writes pilot.csv and tried.csv of the completed runs in that folder."""
    page, tables = RESULTS / "pretrained", dict[str, list[list[object]]]()
    for result in sorted(folder.rglob("result.json")):
        run = RunDirectory(result.parent)
        found, e = json.loads(result.read_text()), run.experiment()
        if found["status"] != "completed":
            continue
        keys = e.flat()
        reads = "neck" if e.neck == "always" else e.representation.removeprefix("pretrained-")
        last = [*run.rounds()][-1]
        told = [
            f"{name}={Path(str(keys[name])).name}"
            for name in OPTIONS
            if name in e.changed() or name == "lr"
        ]
        sent = found["communication"]
        row = [
            reads,
            e.partition.samples_per_client,
            e.sharing,
            e.method,
            " ".join(told),
            e.seed,
            *(last[name] for name in ("validation_accuracy", "accuracy")),
            *(sent[f"parameters_{way}"] for way in ("up", "down")),
        ]
        tables.setdefault("tried" if "tried" in result.parts else "pilot", []).append(row)
    for name, rows in tables.items():
        write_csv(page / f"{name}.csv", COLUMNS, rows)


if __name__ == "__main__":
    joined(Path(sys.argv[1]))
