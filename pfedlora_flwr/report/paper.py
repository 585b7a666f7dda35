"""The paper's own numbers, for comparison: its Tables 1 and 2 and its headline claims (Sections 1
and 5.2)."""

from __future__ import annotations

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.features.rules import FEATURES
from pfedlora_flwr.runs.data_name import own_in_words

_FEDERATIONS = ((10, 1.0), (50, 0.2), (100, 0.1))
_CLASSES_PER_CLIENT = {"cifar10": 2, "cifar100": 10}
_CHANGED = {
    *("models", "train", "image-size", "input-shape", "partition.samples-per-client", "neck"),
    *(name for feature in FEATURES for name in feature.learns_otherwise),
}
"""Keys with which an Experiment is no cell of the paper, unless they are at their defaults."""

_X = None
ACCURACY: dict[str, dict[str, dict[str, tuple[float | None, float | None, float | None]]]] = {
    "heterogeneous": {
        "cifar10": {
            "standalone": (96.53, 95.14, 91.97),
            "fml": (30.48, _X, _X),
            "fedkd": (80.20, 77.37, 73.21),
            "lg_fedavg": (96.30, 94.83, 91.27),
            "fd": (96.21, _X, _X),
            "fedproto": (96.51, 95.48, 92.49),
            "pfedlora": (96.66, 95.74, 92.58),
        },
        "cifar100": {
            "standalone": (72.53, 62.71, 53.04),
            "fml": (16.84, 21.96, 15.21),
            "fedkd": (53.23, 44.27, 37.21),
            "lg_fedavg": (72.20, 60.95, 45.83),
            "fd": (_X, _X, _X),
            "fedproto": (72.59, 62.69, 53.67),
            "pfedlora": (73.58, 64.06, 53.95),
        },
    },
    "homogeneous": {
        "cifar10": {
            "standalone": (96.35, 95.25, 92.58),
            "fml": (94.83, 93.18, 87.93),
            "fedkd": (94.77, 92.93, 90.23),
            "lg_fedavg": (96.47, 94.20, 90.25),
            "fd": (96.30, _X, _X),
            "fedproto": (95.83, 95.10, 91.19),
            "pfedlora": (96.69, 95.55, 92.80),
        },
        "cifar100": {
            "standalone": (74.32, 62.38, 54.93),
            "fml": (70.02, 57.56, 46.20),
            "fedkd": (70.04, 57.56, 50.99),
            "lg_fedavg": (73.43, 61.77, 46.64),
            "fd": (_X, _X, _X),
            "fedproto": (72.79, 62.55, 54.01),
            "pfedlora": (75.58, 62.55, 55.82),
        },
    },
}
"""Mean accuracy in percent by setting, dataset and method, for N = 10, 50 and 100; None: the
paper's "-", failure to converge."""

BASELINES = tuple(method for method in ACCURACY["heterogeneous"]["cifar10"] if method != "pfedlora")
"""The methods that the paper compares pFedLoRA with."""

GAIN, COMPUTATION, COMMUNICATION = 1.35, 11.81, 7.41
"""Up to so many points above the best baseline; so many times less computation and communication
than FedProto to the same accuracy."""


def accuracy(outcome: Outcome) -> str | None:
    """The paper's accuracy for the method and the scenario as it prints it; None where the paper
    has no such cell, or the data is the sites' own."""
    run = next(iter(outcome.runs.values()))
    e = run.experiment
    row = ACCURACY[e.setting].get(e.dataset, {}).get(e.method)
    federation = (e.clients, e.participation)
    split = (
        e.partition.kind == "pathological"
        and e.partition.classes_per_client == _CLASSES_PER_CLIENT.get(e.dataset)
    )
    if (
        row is None
        or federation not in _FEDERATIONS
        or not split
        or _CHANGED & e.changed().keys()
        or own_in_words(run.result)
    ):
        return None
    value = row[_FEDERATIONS.index(federation)]
    return "-" if value is None else f"{value:.2f}"
