"""Uploads that are kept: what a site may demand of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.features.demand import Demand
from pfedlora_flwr.federation import wire
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.method import ByClient, Tensors
from pfedlora_flwr.runs.uploads import UPLOADS, Uploads


@dataclass(frozen=True)
class Kept(Demand):
    by_server: bool = key(True, "whether the server may keep uploads (audit.uploads)", name="audit")
    here: int = key(
        0, "visits of a run whose uploads stay here for site audit", name="keep-uploads", low=0
    )

    def objections(self, config: RunConfig, asked: Mapping[str, Any], kind: str) -> Iterator[str]:
        e = config.experiment
        keeps = {
            "audit.uploads is true": config.execution.keeps_uploads,
            e.control.replace("=", " is "): e.state_per_client,
            "aggregation is krum": e.aggregation == "krum",
            "a round has one client": e.sampled == 1,
        }
        for why, on in keeps.items():
            if on and not self.by_server:
                yield f"audit is false here, and {why} in this run"

    def sent(self, home: Path, round: int, received: Tensors, own: ByClient, samples: int) -> None:
        if not self.here:
            return
        kept = Uploads(home / UPLOADS)
        sent = {k: replace(upload, tensors=_travelled(upload.tensors)) for k, upload in own.items()}
        kept.save(round, _travelled(received), sent, samples)
        kept.keep(self.here)


def _travelled(tensors: Tensors) -> Tensors:
    """As the server would have them."""
    return wire.to_tensors([*tensors], wire.to_arrays(tensors))
