"""What a run's keys make: its data, its task and its method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.errors import wrong
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method


@dataclass(frozen=True)
class Setup(DataSetup):
    """The data of an Experiment, and its method. The data is made once a process; the method is
    each Setup's own, for one of the user's may keep something from call to call."""

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Of a run's keys."""
        return cls(config.experiment, config.execution.data_path)

    @cached_property
    def method(self) -> Method:
        """The method, for what the models take and give. Raises UserError if it does not take such
        inputs, or a weight is not of a class."""
        e, task = self.experiment, self.task
        weights = e.loss.class_weights
        if weights is not None and len(weights) != task.classes and not e.adds:
            allowed = f"a number for each of {task.classes} classes"
            raise wrong("loss.class-weights", weights, allowed)
        return registry.make(e, task)
