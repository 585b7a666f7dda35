"""Clients that are never sampled: what goes together with them."""

from __future__ import annotations

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.feature import Feature
from pfedlora_flwr.methods.method import Method


class HeldOutClients(Feature):
    learns_otherwise = frozenset({"clients-held-out"})

    def check(self, e: Experiment, x: Execution, method: type[Method]) -> None:
        if not e.held_out.clients:
            return
        told = f"clients-held-out is {e.held_out.clients}"
        if e.held_out.clients >= e.clients:
            raise UserError(f"{told}; allowed: at most {e.clients - 1}, one fewer than clients")
        if e.hides_uploads:
            raise UserError(
                f"{told} and {e.hides_uploads}, too: what a client reports of its adaptation would"
                " show its number of samples; use `pfedlora adapt`"
            )
        if e.stop.patience:
            raise UserError(
                "stop.patience is set and clients-held-out, too, whose adaptation is after the last"
                " planned round: use `pfedlora adapt`"
            )

    def needs_state(self, e: Experiment) -> str:
        return f"clients-held-out is {e.held_out.clients}" if e.held_out.clients else ""

    def unnoised(self, e: Experiment, kept: bool) -> list[str]:
        told = "what held-out clients tell of their adaptation"
        return [told] if e.held_out.clients and not e.noises_sums else []
