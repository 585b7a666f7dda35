"""The keys of held-out clients."""

from __future__ import annotations

from dataclasses import dataclass

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.keys import Form, Listed, Section, integer, key


@dataclass(frozen=True)
class HeldOut(Section):
    """Clients that are never sampled."""

    clients: int = key(
        0,
        "H, the last clients, which have data and are never sampled; adapted and evaluated at the"
        " end, as clients that come later",
        name="clients-held-out",
        low=0,
    )
    rounds: int = key(10, "visits of a held-out client when it is adapted", low=1)
    samples: Listed[int | None] = key(
        "all",
        "training samples with which a held-out client is adapted: all, or a number; several,"
        " each for an adaptation of its own",
        form=Form("all, or integers ≥ 2", lambda w: None if w == "all" else integer(w, 2)),
    )
    every: int = key(
        0,
        "adapt the held-out clients after every n-th round, too; 0: only at the end",
        low=0,
    )

    def check(self) -> None:
        if len({*self.samples}) < len(self.samples):
            raise UserError(f"held-out.samples is {self.samples!r}; allowed: each number once")
