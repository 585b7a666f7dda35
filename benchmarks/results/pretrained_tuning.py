"""The candidates that chose the rates of the pretrained backbones: tuning.csv, a row each, with the
mean validation accuracy over the clients after the last round, in [0, 1].

    python -m benchmarks.results.pretrained_tuning FOLDER...

adds those of the comparisons in these folders."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.results.page import RESULTS, Page, completed, merged
from benchmarks.results.pretrained_federations import READS
from pfedlora_flwr.methods import registry

OPTIONS = ("lr", "adapter.hidden-dim", "fedgh.server-lr")
OF = ("dataset", "clients", "partition.kind", "partition.samples-per-client")
KEYS = (*OF, "representation", "representation-norm", "sharing", "method", *OPTIONS)
FILE = "tuning.csv"
SEED = 0
"""The seed that chooses."""
NAMES: dict[tuple[str, ...], str] = {
    ("cifar100", "100", "pathological", "10"): "10 images",
    ("cifar100", "100", "pathological", "30"): "30 images",
    ("cifar100", "100", "pathological", "50"): "50 images",
    ("cifar10", "100", "pathological", "10"): "CIFAR-10",
    ("cifar100", "100", "dirichlet", "30"): "Dirichlet",
    ("cifar100", "3", "iid", "100"): "three clients",
}
TABLES = {"none": "tuning", "layer": "tuning-normalised"}
"""By representation-norm."""
RATES = ("3e-05", "0.0001", "0.0003", "0.001", "0.003", "0.01", "0.03", "0.1", "0.3", "1.0")


def tuning(page: Page) -> None:
    """A table for representations as they are, of each method with sharing that had a rate below
    0.003, and one for normalised ones, of all with sharing: the best candidate of each rate."""
    rows = [row for row in page.rows(FILE) if row["sharing"] == "mean"]
    lower = {*RATES[: RATES.index("0.003")]}
    for norm, table in TABLES.items():
        found = dict[tuple[str, str, str], dict[str, float]]()
        for row in rows:
            name = NAMES.get(tuple(row[key] for key in OF))
            if name and row["representation-norm"] == norm:
                of = found.setdefault((name, row["representation"], row["method"]), {})
                of[row["lr"]] = max(of.get(row["lr"], 0), float(row["validation"]))
        shown = {kind: of for kind, of in found.items() if norm == "layer" or of.keys() & lower}
        rates = [rate for rate in RATES if any(rate in of for of in shown.values())]
        methods = registry.ordered({method for _, _, method in shown})
        lines = [
            [name, title, registry.title(method), *_cells(shown[name, reads, method], rates)]
            for name in NAMES.values()
            for reads, title in READS.items()
            for method in methods
            if (name, reads, method) in shown
        ]
        titles = [f"{float(rate):f}".rstrip("0").rstrip(".") for rate in rates]
        page.whole(table, ("clients", "the head sees", "method", *titles), lines)


def _cells(by_rate: dict[str, float], rates: list[str]) -> list[str]:
    cells = {rate: f"{100 * value:.2f}" for rate, value in by_rate.items()}
    best = max(by_rate, key=by_rate.__getitem__)
    cells[best] = f"**{cells[best]}**"
    return [cells.get(rate, "") for rate in rates]


def candidates(folder: Path) -> list[list[object]]:
    """Of a comparison's completed runs with the seed that chooses."""
    rows = list[list[object]]()
    for run, _ in completed(folder):
        e = run.experiment()
        if e.seed == SEED:
            keys = e.flat()
            *_, last = run.rounds()
            rows.append([*(keys.get(key, "") for key in KEYS), last["validation_accuracy"]])
    return rows


if __name__ == "__main__":
    new: list[list[object]] = [row for name in sys.argv[1:] for row in candidates(Path(name))]
    merged(RESULTS / "pretrained" / FILE, (*KEYS, "validation"), KEYS, new)
