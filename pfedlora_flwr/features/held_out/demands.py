"""Held-out clients: what a site may demand of their adaptation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.features.demand import Demand
from pfedlora_flwr.keys import key


@dataclass(frozen=True)
class Adapted(Demand):
    adapt: bool = key(True, "whether models are adapted for held-out clients", name="adapt")

    def objections(self, config: RunConfig, asked: Mapping[str, Any], kind: str) -> Iterator[str]:
        if kind == "evaluate" and asked.get("adapt") and not self.adapt:
            yield "adapt is false here"
