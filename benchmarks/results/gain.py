"""The variants of pFedLoRA that were tried, and the two that were confirmed, beside themselves
without sharing and beside Standalone.

    python -m benchmarks.results.gain tried runs/benchmarks-gain
    python -m benchmarks.results.gain confirmed runs/benchmarks-gain-confirm \\
        runs/benchmarks-gain-standalone

write tried.csv, a row a variant in the order of the comparison: accuracies in percent at the round
of the best validation accuracy, and their difference, in points; empty where there is no such run,
and why a run is not completed in the last column. And confirmed.csv, a row a variant, control and
seed: test accuracies at that round and after the last one, and the validation accuracy."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.results.page import (
    RESULTS,
    BySeed,
    Page,
    bonferroni,
    by_seed,
    completed_runs,
    difference,
    estimate,
    forest,
    percent,
    points,
    write_csv,
)
from pfedlora_flwr.comparison.spec import Comparison
from pfedlora_flwr.report.measures import Estimate
from pfedlora_flwr.runs.completed import Missing, Run, read_run
from pfedlora_flwr.runs.directory import find_runs

HERE = RESULTS / "gain"
KINDS = ("mean", "none")
CONFIRMED = ("rows=classes down=fixed adapter.hidden-dim=500", "rows=classes down=fixed mu=0.3")
FRESH = ("1", "2", "3")


def make(page: Page) -> None:
    rows = page.rows("confirmed.csv")

    def of(variant: str, sharing: str, column: str = "at best validation") -> BySeed:
        found = by_seed(rows, column, variant=variant, sharing=sharing)
        return {seed: value / 100 for seed, value in found.items() if seed in FRESH}

    alone = of("standalone", "mean")
    shown: dict[str, list[tuple[str, Estimate]]] = {
        "gain from sharing": [],
        "as it is − Standalone": [],
    }
    lines = [["Standalone", percent(estimate(alone)), "", "", "", ""]]
    for variant in CONFIRMED:
        mean, none = (of(variant, kind) for kind in KINDS)
        gain, lead = difference(mean, none), difference(mean, alone)
        deficit = difference(none, alone)
        for rows_of, e in zip(shown.values(), (gain, lead), strict=True):
            rows_of.append((variant.removeprefix("rows=classes down=fixed "), e))
        page.says(gain, lead, bonferroni(gain, 2), bonferroni(lead, 2), deficit)
        cells = percent(estimate(mean)), percent(estimate(none))
        leads = points(lead), points(deficit)
        lines.append([f"`{variant}`", *cells, points(gain), *leads])
    page.table(
        "confirmed",
        (
            "method-options",
            "as it is",
            "`sharing=none`",
            "gain from sharing",
            "as it is − Standalone",
            "none − Standalone",
        ),
        lines,
    )
    page.picture("gain.png", lambda to: forest(shown, "points", to / "gain.png"))
    page.quotes("sharing", "11.31", "5.05", "4.30", "4.01", "3.80")
    page.quotes("normalised", "1.97 ± 1.76")
    page.settings("0.5")


def tried(folder: Path) -> None:
    found: dict[str, dict[str, Run | Missing]] = {}
    for directory in find_runs(folder):
        e = directory.experiment()
        found.setdefault(e.method_options, {})[e.sharing] = read_run(directory.path)
    counts = [f"{kind}, {c}" for c in ("validation", "test") for kind in (*KINDS, "gain")]
    rows = (_tried(options, found.get(options, {})) for options in _order())
    write_csv(HERE / "tried.csv", ("method-options", *counts, "failed"), rows)


def _tried(options: str, read: dict[str, Run | Missing]) -> Sequence[str]:
    runs = {kind: run for kind, run in read.items() if isinstance(run, Run)}
    missing = [f"{kind}: {run.reason}" for kind, run in read.items() if isinstance(run, Missing)]
    return (
        options,
        *_told({kind: run.validation for kind, run in runs.items()}),
        *_told({kind: run.accuracy for kind, run in runs.items()}),
        "; ".join(missing),
    )


def _order() -> list[str]:
    """The variants, as the comparison lists them."""
    cells = Comparison.load(HERE.parents[2] / "benchmarks" / "gain.yaml").cells()
    return list(dict.fromkeys(str(cell.scenario["method-options"]) for cell in cells))


def _told(values: dict[str, float]) -> list[str]:
    gain = f"{100 * (values['mean'] - values['none']):+.2f}" if len(values) == len(KINDS) else ""
    return [*(f"{100 * values[kind]:.2f}" if kind in values else "" for kind in KINDS), gain]


def confirmed(folders: Iterable[Path], where: Path = HERE / "confirmed.csv") -> None:
    found: dict[tuple[str, str], dict[int, Run]] = {}
    for run in (run for folder in folders for run in completed_runs(folder)):
        e = run.experiment
        found.setdefault((e.method_options or e.method, e.sharing), {})[e.seed] = run
    rows = (
        (*who, seed, *(f"{100 * a:.4f}" for a in accuracies))
        for who, runs in found.items()
        for seed, run in runs.items()
        for accuracies in [(run.accuracy, run.rounds[-1]["accuracy"], run.validation)]
    )
    header = ("variant", "sharing", "seed", "at best validation", "final", "validation, best")
    write_csv(where, header, rows)


if __name__ == "__main__":
    what, *folders = sys.argv[1:]
    if what == "tried":
        tried(Path(folders[0]))
    else:
        confirmed(map(Path, folders))
