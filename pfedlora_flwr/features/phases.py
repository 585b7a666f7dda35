"""What features do with clients between rounds, on the server and on a node."""

from __future__ import annotations

from pfedlora_flwr.features.held_out import phase as held_out
from pfedlora_flwr.features.held_out.rules import check_adapts

is_due, carry_out = held_out.is_due, held_out.carry_out
check, adapted = check_adapts, held_out.adapted
