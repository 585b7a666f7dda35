"""All methods on CIFAR-100, of the report's tables, and why pFedLoRA is below Standalone.

    python -m benchmarks.results.methods_cifar100 'Standalone=runs/…/standalone' 'mu=0.9=runs/…' …

writes, from those runs, visits.csv, a row a visit: the test accuracy right after it and the losses
of the last epoch; and rounds.csv, a row a round: the mean accuracy over all clients. In [0, 1].
first_visit.csv is of `python -m benchmarks.first_visit`."""

from __future__ import annotations

import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.results.methods_cifar10 import methods, named_runs
from benchmarks.results.page import RESULTS, Page, Row, signed, write_csv
from pfedlora_flwr.runs.completed import Run

ALONE = "Standalone"
RUNS = {
    "Standalone": "Standalone",
    "Standalone, lr=0.005": "Standalone at half the learning rate, `lr=0.005`",
    "pFedLoRA": "pFedLoRA as it is: μ = 0.5",
    "mu=0.9": "`mu=0.9`",
    "lr=0.02 adapter-lr=0.01": "`lr=0.02 adapter-lr=0.01`",
    "adapter-lr=0.001": "`adapter-lr=0.001`",
    "adapter.init=lora": "`adapter.init=lora`",
    "clip-norm=50": "`clip-norm=50`, as in the authors' code for sibling methods",
    "sharing=start": "`sharing=start`: the untrained adapter at every visit",
    "sharing=none": "`sharing=none`: each client's adapter is its own",
    "features=normalised": "adapter reads R without mean and scale (ours)",
}
FIRST = {
    "mu=0.5": "μ = 0.5",
    "adapter.init=lora": "μ = 0.5, `adapter.init=lora`",
    "mu=0.9": "μ = 0.9",
    "mu=1, which is Standalone": "μ = 1, which is Standalone",
    "lr=0.02": "μ = 0.5, `lr=0.02`",
}
LOSSES = ("own loss", "loss through the adapter")
VARIANTS = ("features=normalised", "rows=classes features=normalised")
Visits = Mapping[tuple[str, int], float]
"""By client and its visit, the accuracy right after it, in percent."""


def make(page: Page) -> None:
    methods(page, "", worst=False)
    page.settings("0.9")
    rows = page.rows("visits.csv")
    last = {
        row["run"]: 100 * float(row["accuracy"])
        for row in page.rows("rounds.csv")
        if row["round"] == "30"
    }
    why(page, rows, last)
    first_visits(page)
    variants(page, rows, last)


def visits(rows: Iterable[Row], run: str) -> Visits:
    return {
        (row["client"], int(row["visit"])): 100 * float(row["test accuracy after it"])
        for row in rows
        if row["run"] == run
    }


def why(page: Page, rows: Sequence[Row], last: Mapping[str, float]) -> None:
    alone = visits(rows, ALONE)
    lines = []
    for run, name in RUNS.items():
        of = [row for row in rows if row["run"] == run]
        there = visits(of, run)
        if run == ALONE:
            means = [
                statistics.fmean(a for (_, n), a in alone.items() if n == v) for v in (1, 2, 3)
            ]
            lines.append([name, f"{last[run]:.2f}", "–", *(f"{m:.1f}" for m in means), ""])
            continue
        counts = [apart(there, alone, n) for n in (1, 2, 3)]
        few = run == "sharing=none"
        cells = [change(values) + (f" ({len(values)})" if few else "") for values in counts]
        ends = (
            [f"{last[run]:.2f}", signed(last[run] - last[ALONE])]
            if run in last
            else ["failed in round 17", ""]
        )
        blew_up = sum(not float(row["phase 2"]) <= math.log(100) for row in of if row["phase 2"])
        total = f" of {len(of)}" if run in ("pFedLoRA", "sharing=none") else ""
        lines.append([name, *ends, *cells, "" if run.startswith(ALONE) else f"{blew_up}{total}"])
    seen = [len(apart(alone, alone, n)) for n in (1, 2, 3)]
    header = ("run", "accuracy", "− Standalone, points", f"after 1st visits ({seen[0]})")
    page.whole("why", (*header, f"2nd ({seen[1]})", f"3rd ({seen[2]})", "blew up"), lines)
    said(page, change_of_last(visits(rows, "pFedLoRA"), alone))


def apart(ours: Visits, theirs: Visits, visit: int) -> list[float]:
    """Ours minus theirs right after each client's such visit."""
    return [a - theirs[key] for key, a in ours.items() if key[1] == visit and key in theirs]


def change(values: Sequence[float]) -> str:
    """`+0.4 ± 0.6`: the mean with its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5
    text = signed(statistics.fmean(values), 1)
    return f"{'0.0' if text[1:] == '0.0' else text} ± {error:.1f}"


def change_of_last(ours: Visits, theirs: Visits) -> list[float]:
    """Ours minus theirs right after each client's last visit."""
    return [a - theirs[key] for key, a in ours.items() if (key[0], key[1] + 1) not in theirs]


def said(page: Page, values: Sequence[float]) -> None:
    """A mean with its standard error, as the prose may say it."""
    text = change(values).replace("−", "").replace("+", "")
    page.said.add(text)


def first_visits(page: Page) -> None:
    rows = page.rows("first_visit.csv")
    lines = []
    for keys, name in FIRST.items():
        of = [row for row in rows if row["keys"] == keys]
        m = {
            column: statistics.median(float(row[column]) for row in of)
            for column in of[0]
            if column not in ("keys", "client")
        }
        norm = m["norm of R after"]
        ends = [[m[f"{what} {when}"] for when in ("before", "after")] for what in LOSSES]
        lines.append(
            [
                name,
                f"{m['norm of R before']:.1f} → {norm:.{0 if norm >= 10 else 1}f}",
                *(f"{before:.2f} → {after:.2f}" for before, after in ends),
                *(f"{m[f'phase 2 at {lr}']:#.3g}" for lr in ("0.01", "0.001")),
            ]
        )
    header = ("run", "mean norm of R, before → after phase 1", "own loss")
    more = ("loss through the adapter", "phase 2's last loss at 0.01", "at 0.001")
    page.whole("first-visit", (*header, *more), lines)


def variants(page: Page, rows: Sequence[Row], last: Mapping[str, float]) -> None:
    alone = visits(rows, ALONE)
    lines = []
    for name in VARIANTS:
        own = f"{name}, sharing=none"
        firsts = (change(apart(visits(rows, run), alone, 1)) for run in (name, own))
        page.says(*(last[run] - last[ALONE] for run in (name, own)))
        gain = signed(last[name] - last[own])
        lines.append([f"`{name}`", f"{last[name]:.2f}", f"{last[own]:.2f}", gain, *firsts])
    header = ("method-options", "as it is", "`sharing=none`", "gain from sharing, points")
    more = ("after 1st visits: as it is", "`sharing=none`")
    page.table("variants", (*header, *more), lines)
    page.says(last["adapter.init=lora"] - last["pFedLoRA"])
    page.says(last["lr=0.02 adapter-lr=0.01"] - last["pFedLoRA"])


def main() -> None:
    runs = named_runs(sys.argv[1:])
    folder = RESULTS / "methods" / "cifar100"
    header = ("run", "round", "client", "model", "visit", "test accuracy after it")
    losses = ("last epoch's loss, phase 1", "phase 2")
    write_csv(folder / "visits.csv", (*header, *losses), visits_of(runs))
    rounds = (
        (name, row["round"], f"{row['accuracy']:.6f}")
        for name, run in runs.items()
        for row in run.rounds
    )
    write_csv(folder / "rounds.csv", ("run", "round", "accuracy"), rounds)


def visits_of(runs: Mapping[str, Run]) -> Iterable[Sequence[object]]:
    for name, run in runs.items():
        seen: Counter[int] = Counter()
        for visit in run.directory.visits():
            if visit["status"] == "ok":
                client = visit["client"]
                seen[client] += 1
                losses = visit["losses"] or {}
                own, adapter = (losses.get(key) for key in ("model", "adapter"))
                yield (
                    name,
                    visit["round"],
                    client,
                    visit["model"],
                    seen[client],
                    round(visit["accuracy"], 6),
                    "" if own is None else round(own, 4),
                    "" if adapter is None else round(adapter, 4),
                )


if __name__ == "__main__":
    main()
