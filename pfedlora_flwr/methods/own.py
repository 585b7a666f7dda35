"""A user's own method, called as the package's are: what it raises is a UserCodeError."""

from __future__ import annotations

import functools
import inspect
from typing import Any, cast

import numpy as np

from pfedlora_flwr.errors import UserError, user_code
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods.method import Method, Refused
from pfedlora_flwr.models.task import Task


def check_experiment(method: type[Method], experiment: Experiment) -> None:
    """The class's own check. Raises UserError for an Experiment that it cannot run."""
    with user_code("method", experiment.method):
        method.check_experiment(experiment)


def construct(found: type[Method], experiment: Experiment, task: Task) -> Method:
    """The method; a user's own (`package.module:Class`) is guarded."""
    with user_code("method", experiment.method):
        method = found(experiment, task)
    return cast(Method, _Guarded(method)) if ":" in experiment.method else method


class _Guarded:
    """A method of whose members each call from outside raises a UserCodeError for what the user's
    code raises. Calls within the method are as its author wrote them, and Refused stays."""

    def __init__(self, method: Method) -> None:
        self._method = method

    @property  # type: ignore[misc]
    def __class__(self) -> type[Method]:  # type: ignore[override]
        """`isinstance` sees the method."""
        return type(self._method)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._method, name)
        if not inspect.isroutine(found):
            return found

        @functools.wraps(found)
        def call(*args: Any, **named: Any) -> Any:
            with user_code("method", self._method.experiment.method, Refused):
                return found(*args, **named)

        return call

    def aggregate(self, *args: Any, **named: Any) -> Any:
        """The method's. Raises UserError if it changed attributes: a resumed run does not have
        them."""
        before = _seen(vars(self._method))
        merged = self.__getattr__("aggregate")(*args, **named)
        changed = [
            name
            for name, _ in {*_seen(vars(self._method))} ^ {*before}
            if not isinstance(getattr(type(self._method), name, None), functools.cached_property)
        ]
        if changed:
            raise UserError(
                f"method {self._method.experiment.method!r}: aggregate changed self.{min(changed)},"
                " which a resumed run would not have; keep what lasts in the state that it returns"
            )
        return merged


def _seen(value: Any) -> Any:
    """What changes with a value, also in place: of a tensor PyTorch counts that."""
    if isinstance(value, dict):
        return tuple((name, _seen(one)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_seen, value))
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return id(value), getattr(value, "_version", 0)
