"""Clients that are never sampled: what goes together with them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from pfedlora_flwr.errors import UserError, some
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.feature import Feature
from pfedlora_flwr.methods.method import Method

FILE = "held_out.jsonl"
_LISTED = 20


class HeldOutClients(Feature):
    phases = MappingProxyType({"adapting": "adapting held-out clients"})
    lines = (FILE,)
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

    def without_scores(self, result: Any) -> int:
        return len(result["held_out"]["clients"]) if "held_out" in result else 0


def check_adapts(e: Experiment, client: int) -> None:
    """Raises UserError for a client of the training: an adaptation tells its samples."""
    if e.hides_uploads or client not in e.held_out_clients:
        raise UserError(f"the server asks to adapt client {client}, which is not held out here")


def beside(e: Experiment) -> list[str]:
    """The line of held-out clients, who are in no estimate of a run's cost; none without them."""
    held = some([str(client) for client in e.held_out_clients], _LISTED)
    line = (
        f"held out: clients {held}, adapted in {e.held_out.rounds} visits with"
        f" {e.held_out.samples} samples; not in the estimates"
    )
    return [line] if e.held_out.clients else []
