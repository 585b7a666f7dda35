"""The controls, in which nothing is shared: what goes together with them."""

from __future__ import annotations

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.feature import Feature
from pfedlora_flwr.methods.method import Method


class Sharing(Feature):
    learns_otherwise = frozenset({"sharing"})

    def check(self, e: Experiment, x: Execution, method: type[Method]) -> None:
        if e.sharing == "start" and method.needs_downloads:
            raise UserError(
                f"sharing is start; allowed with {e.method}: mean, none: {method.needs_downloads}"
            )
