"""The server's data during one round."""

from __future__ import annotations

from dataclasses import dataclass, field

from pfedlora_flwr.errors import as_line, some
from pfedlora_flwr.federation.admission import Admitted
from pfedlora_flwr.federation.clock import Clock
from pfedlora_flwr.runs.ledger import Cost

_REASONS, _CLIENTS = 3, 10
"""What the line on a failed round names of each."""


@dataclass
class Round:
    """It is dropped whole at the round's end. By client: `sent`, what has gone down; `failures`,
    why there is no admitted answer."""

    number: int
    sampled: list[int]
    clock: Clock
    sent: dict[int, Cost] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    diverged: dict[int, str] = field(default_factory=dict)  # those of them whose training did
    visits: dict[int, Admitted] = field(default_factory=dict)
    weights: dict[int, int] = field(default_factory=dict)  # where below the claimed n_k
    failed: bool = False  # counted as such, once
    server_flops: int = 0  # executed in the merge
    exchanges_lora: bool = False  # whether the round's line has an aggregation error
    aggregation_error: float | None = None  # of the merge; None where it means nothing

    def fail(self, client: int, reason: str) -> str:
        """Takes down why there is no admitted answer of a client; the reason as it is told."""
        self.failures[client] = as_line(reason)
        return self.failures[client]

    def told_failures(self) -> list[str]:
        """Why clients failed, by client: each of the first reasons, with all who gave it."""
        by_reason: dict[str, list[str]] = {}
        for client, why in sorted(self.failures.items()):
            by_reason.setdefault(why, []).append(str(client))
        lines = [
            f"client{'s' if len(clients) > 1 else ''} {some(clients, _CLIENTS)}: {why}"
            for why, clients in by_reason.items()
        ]
        rest = sum(len(clients) for clients in [*by_reason.values()][_REASONS:])
        return [*lines[:_REASONS], *([f"and {rest} more failed"] if rest else [])]

    def send(self, client: int, cost: Cost) -> None:
        """Adds to what was sent to a client, which may be asked twice."""
        self.sent[client] = self.sent.get(client, Cost()) + cost

    def cost_of(self, client: int) -> Cost:
        """What the admitted visit of a client cost."""
        return self.sent[client] + self.visits[client].cost

    def cost(self) -> Cost:
        """What all clients cost: of one without an admitted visit, what was sent to it."""
        return sum(
            (self.cost_of(c) if c in self.visits else self.sent[c] for c in self.sent), Cost()
        )
