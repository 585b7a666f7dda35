"""Clients that are never sampled: what goes together with them."""

from __future__ import annotations

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.feature import Feature
from pfedlora_flwr.methods.method import Method


class HeldOutClients(Feature):
    def check(self, e: Experiment, x: Execution, method: type[Method]) -> None:
        if not e.held_out.clients:
            return
        told = f"clients-held-out is {e.held_out.clients}"
        if e.held_out.clients >= e.clients:
            raise UserError(f"{told}; allowed: at most {e.clients - 1}, one fewer than clients")
        if e.state_per_client:
            raise UserError(
                f"{told} and sharing is none, where no state is shared; allowed with it: mean,"
                " start"
            )
        if e.secagg.enabled:
            raise UserError(
                f"{told} and secagg.enabled, too: what a client reports of its adaptation would"
                " show its number of samples; use `pfedlora adapt`"
            )
        if e.stop.patience:
            raise UserError(
                "stop.patience is set and clients-held-out, too, whose adaptation is after the last"
                " planned round: use `pfedlora adapt`"
            )
