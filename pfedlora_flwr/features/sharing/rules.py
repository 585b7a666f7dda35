"""The controls, in which nothing is shared: what goes together with them."""

from __future__ import annotations

from types import MappingProxyType

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.feature import Feature
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method

NAMES = {"mean": "with sharing", "none": "without sharing", "start": "first state only"}
"""The values of `sharing` for readers who do not know the key."""


class Sharing(Feature):
    learns_otherwise = frozenset({"sharing"})
    controls = MappingProxyType({"sharing": NAMES})

    def check(self, e: Experiment, x: Execution, method: type[Method]) -> None:
        if e.control and issubclass(method, registry.find(registry.POOLED)):
            raise UserError(
                f"method is {e.method}, which trains on all clients' rows: sharing is"
                f" {e.sharing}; allowed: mean"
            )
        if e.sharing == "start" and method.needs_downloads:
            raise UserError(
                f"sharing is start; allowed with {e.method}: mean, none: {method.needs_downloads}"
            )
