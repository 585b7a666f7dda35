"""Names in a report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.comparison.spec import short
from pfedlora_flwr.data import registry as datasets
from pfedlora_flwr.errors import counted
from pfedlora_flwr.features.rules import CONTROLS, normal
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.measures import Estimate
from pfedlora_flwr.runs.output import without_folders
from pfedlora_flwr.runs.result import never_evaluated
from pfedlora_flwr.training.metrics import SMALLER_IS_BETTER, TITLES, place

_SYMBOLS = {
    "clients": "N",
    "mu": "μ",
    "adapter.hidden-dim": "h",
    "local-epochs": "E",
    "batch-size": "B",
    "rounds": "T",
}
ONE = "all runs"
"""The only scenario."""
NAMES = {
    "clients": "clients, N",
    "participation": "participation, C",
    "mu": "weight of the own loss, μ",
    "adapter.hidden-dim": "adapter's hidden width, h",
    "partition.classes-per-client": "classes per client",
}
"""Keys as the label of a figure's axis."""


def names(outcome: Outcome) -> dict[str, str]:
    """The cells with which a row says what it is of."""
    return {"scenario": keys(outcome.scenario) or ONE, "method": outcome.title}


def keys(settings: Mapping[str, Scalar]) -> str:
    """A scenario, or tuned keys, in short: `CIFAR-10, N=50, C=20 %`; empty for the only one."""
    return ", ".join(key(name, value) for name, value in settings.items())


def accuracy(scenario: Mapping[str, Scalar]) -> str:
    """The heading of the accuracies there."""
    name = keys(scenario)
    return f"accuracy {name}" if len(normal(scenario)) == len(scenario) == 1 else name or "accuracy"


def of(scenario: Mapping[str, Scalar]) -> str:
    """The same behind what a figure shows: `, CIFAR-10, N=50`."""
    return f", {keys(scenario)}" if scenario else ""


def key(name: str, value: Scalar) -> str:
    """One key and its value in short."""
    if name == "participation":
        return f"C={float(value) * 100:g} %"
    if name == "dataset":
        return str(without_folders(datasets.title(str(value))))
    if name in CONTROLS:
        return CONTROLS[name][str(value)]
    value = without_folders(value)
    if name in ("setting", "method", "comparison"):
        return str(value)
    if name == "partition.classes-per-client":
        return f"{value} classes a client"
    return f"{_SYMBOLS.get(name, short(name))}={value}"


def score(name: str) -> str:
    """A score in a sentence."""
    return TITLES.get(place(name), name)


def unit(name: str) -> str:
    """What its values are given in, as points are of shares."""
    return "hundredths" if name == "log-loss" else "%"


def gained(name: str) -> str:
    """The same, of a difference in it."""
    less = "less is better, + is less"
    less = f"in hundredths; {less}" if name == "log-loss" else less
    return score(name) + (f" ({less})" if place(name) in SMALLER_IS_BETTER else "")


def score_first(name: str) -> str:
    """The same where a sentence begins."""
    text = score(name)
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str]) -> str:
    """`A, B and C`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def uncounted(study: Study) -> str:
    """A sentence for behind means over clients, where some runs did not evaluate them all; else
    nothing."""
    most = max((never_evaluated(run.result) for run in study.runs), default=0)
    told = f" Not counted: up to {counted(most, 'client')} of a run, never evaluated."
    return told if most > 0 else ""


def percent(
    e: Estimate | None, *, sign: bool = False, seeds: int | None = None, std: bool = False
) -> str:
    """`96.66 ± 0.31`, in percent (or points, with their sign); where there are too few seeds for an
    interval, the seeds' values. seeds: how many its row is of; if it is not, it says so. std: `mean
    ± standard deviation (interval)`."""
    if e is None:
        return "–"
    if std and e.half is not None:
        low, high = (100 * (e.mean + side * e.half) for side in (-1, 1))
        deviation = 100 * statistics.stdev(e.values)
        return f"{100 * e.mean:.2f} ± {deviation:.2f} ({low:.2f} to {high:.2f})"
    shown = [
        f"{100 * value:{'+' if sign else ''}.2f}"
        for value in (e.values if e.half is None else [e.mean])
    ]
    half = f" ± {100 * e.half:.2f}" if e.half is not None else ""
    return ", ".join(shown) + half + (of_seeds(e, seeds) if seeds is not None else "")


def of_seeds(e: Estimate, seeds: int) -> str:
    """` (3 seeds)`, behind what is of another number of seeds than its row; else nothing."""
    number = len(e.values)
    return "" if number == seeds else f" ({counted(number, 'seed')})"


def size(bytes: float) -> str:
    """Bytes in short: `1.23 MB`; nan is unknown."""
    text = count(bytes)
    return text if math.isnan(bytes) else text + ("B" if " " in text else " B")


def count(value: float) -> str:
    """A large number in short: `1.23 M`, `45.6 G`; nan is unknown."""
    if math.isnan(value):
        return "–"
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(float(f"{value:.3g}")) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
