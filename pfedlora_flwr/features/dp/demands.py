"""Differential privacy: what a site may demand of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.demand import Demand
from pfedlora_flwr.features.dp.ledger import Ledger
from pfedlora_flwr.keys import key

if TYPE_CHECKING:
    from flwr.app import Message


@dataclass(frozen=True)
class Noised(Demand):
    node_keys = "dp", "epsilon-cap", "runs-cap"

    level: str = key(
        "any", "the level that runs must have", name="dp", choices=("any", "user", "record")
    )
    epsilon_cap: float | None = key(
        None, "the most ε of all runs; implies dp", name="epsilon-cap", above=0
    )
    runs_cap: int | None = key(None, "the most runs", name="runs-cap", low=1)

    def counting(self) -> str:
        caps = self.epsilon_cap, self.runs_cap
        return "" if caps == (None, None) else "epsilon-cap and runs-cap"

    def ledger(self, folder: Path) -> Ledger:
        """Of a node with this state-path."""
        return Ledger(folder, self.epsilon_cap, self.runs_cap)

    def objections(self, config: RunConfig, asked: Mapping[str, Any], kind: str) -> Iterator[str]:
        e, wanted = config.experiment, "epsilon-cap" if self.level == "any" else "dp"
        if (self.level, self.epsilon_cap) == ("any", None):
            return
        if not e.noises or e.dp.noise == 0:
            what = "dp.noise is 0" if e.noises else "no dp is set"
            yield f"{wanted} is demanded here, and {what} in this run"
        elif self.level not in ("any", e.dp.level):
            demanded = f"dp of level {self.level} is demanded here"
            yield f"{demanded}, and dp.level is {e.dp.level} in this run"
        elif self.level == "record" and e.noises_sums and not e.hides_uploads:
            yield "dp of level record is demanded here, and this run's server reads exact sums"

    def protection(self, e: Experiment, asked: Message) -> str:
        return f"dp of level {e.dp.level}" if e.noises else ""

    def logged(self, e: Experiment, folder: Path) -> dict[str, Any]:
        return {"epsilon": self.ledger(folder).epsilon()} if e.noises else {}
