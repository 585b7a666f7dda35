"""Secure aggregation: what a site may demand of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.demand import Demand
from pfedlora_flwr.keys import key

if TYPE_CHECKING:
    from flwr.app import Message

LEAST = 3
"""Clients below which a masked sum hides nobody: of two, each knows the other's."""


@dataclass(frozen=True)
class Masked(Demand):
    node_keys = "secagg", "scores"

    secagg: str = key(
        "any", "whether runs must be masked", name="secagg", choices=("any", "required")
    )
    min_sites: int | None = key(
        None, "the fewest sites of a sum; implies secagg", name="min-sites", low=LEAST
    )
    scores: str = key("summed", "scores of masked runs", name="scores", choices=("told", "summed"))

    @property
    def demanded(self) -> bool:
        """Whether runs must be masked."""
        return self.secagg == "required" or self.min_sites is not None

    @property
    def fewest(self) -> int:
        """Clients that a masked sum must have."""
        return max(LEAST, self.min_sites or 0)

    def contradictions(self, scores: str) -> Iterator[str]:
        if scores == "none" and self.demanded:
            yield "egress.scores is none and secagg is required, whose sums hold scores: set mean"

    def objections(self, config: RunConfig, asked: Mapping[str, Any], kind: str) -> Iterator[str]:
        e = config.experiment
        if self.demanded and not e.hides_uploads:
            yield "secagg is required here, and secagg.enabled is false in this run"
        if self.min_sites and e.sampled < self.min_sites:
            yield f"min-sites is {self.min_sites} here, and this run sums {e.sampled} clients"

    def protection(self, e: Experiment, asked: Message) -> str:
        from pfedlora_flwr.federation.flower_compat import secagg_record

        return "secagg" if asked.has_content() and secagg_record(asked.content) is not None else ""
