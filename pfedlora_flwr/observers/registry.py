"""Names → observers: the package's, one line each, and `package.module:Class` for a user's own."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.models.registry import made as made_of
from pfedlora_flwr.observers.max_hours import MaxHours
from pfedlora_flwr.observers.observer import Observer, Observers

_CLASSES = {
    "tensorboard": "TensorBoard",
    "mlflow": "MLflow",
    "wandb": "WeightsAndBiases",
    "prometheus": "Prometheus",
}
"""Module in this folder → class: the trackers. Each imports its library when it is made."""


def observers_of(x: Execution, also: Mapping[str, Observer] = MappingProxyType({})) -> Observers:
    """The run's observers: those that the key `observers` names, the limit of `max-hours`, and
    these.

    Making them starts nothing. Raises UserError for an unknown one, one whose library is missing,
    and what a user's own class raises.
    """
    limit = {"max-hours": MaxHours(x.max_hours)} if x.max_hours else {}
    made = {name: _make(name) for name in dict.fromkeys(filter(None, x.observers))}
    return Observers(made | limit | dict(also))


def _make(name: str) -> Observer:
    if name in _CLASSES:
        made: Observer = getattr(import_module(f"{__package__}.{name}"), _CLASSES[name])()
        return made
    if ":" not in name:
        allowed = ", ".join([*_CLASSES, "package.module:Class"])
        raise UserError(f"observers names {name!r}; allowed, separated by commas: {allowed}")
    return made_of(name, "observer", lambda found: _own(name, found))


def _own(name: str, found: Any) -> Observer:
    """An observer of a user's own class."""
    if not callable(found):
        raise UserError(f"observer {name!r}: expected a class, found {type(found).__name__}")
    observer: Observer = found()
    for method in ("begin", "round", "end"):
        if not callable(getattr(observer, method, None)):
            raise UserError(f"observer {name!r}: it lacks {method}")
    return observer
