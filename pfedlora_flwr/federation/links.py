"""The small links of the chain for uploads: the check for outliers, and uploads kept for an
audit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_low
from typing import TYPE_CHECKING

from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.link import Link
from pfedlora_flwr.methods.method import ByClient, Tensors

if TYPE_CHECKING:
    from pfedlora_flwr.federation.round import Round


NOTHING = 1e-5
"""Root mean squares up to which an update is none, and no measure of the others."""
_ROUNDS = 5
_LAZY = 1e-3


class Outliers(Link):
    """Refuses the clients whose update is more than `clip-norm-factor` times as large as the median
    one (of two: the smaller) of this round, and of the last ones.

    The size is `Method.magnitude`, a root mean square, so it does not depend on how much a client
    sends. Updates that are next to nothing beside those of the last rounds are not in the median,
    unless all are such: clients that send back what they received must not make outliers of those
    that train. A sum is one upload, and its own median."""

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        return x is not None and x.clip_norm_factor > 0 and not e.weighs_alike

    def refused(self, uploads: ByClient) -> Mapping[int, str]:
        factor, last = self.server.execution.clip_norm_factor, self.server.state.sizes
        sizes = {client: self.method.magnitude(upload) for client, upload in uploads.items()}
        before = median_low(last) if last else 0.0
        finite = [size for size in sizes.values() if math.isfinite(size)]
        moved = [size for size in finite if size > max(NOTHING, _LAZY * before)] or finite
        middle = median_low(moved) if moved else 0.0
        reference = max(middle, before)
        if not reference:
            return {}
        if len(uploads) > 1 and middle > _LAZY * before:
            last[:] = [*last, middle][-_ROUNDS:]
        return {
            client: (
                f"its update is {size / reference:.3g} times as large as the median one of this"
                f" round and of the last; clip-norm-factor is {factor:g}"
            )
            for client, size in sizes.items()
            if not size <= factor * reference  # NaN, from values whose squares overflow, included
        }


class KeptUploads(Link):
    """Keeps a round's uploads, and the state that it began with, for `pfedlora audit`."""

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        return x is not None and x.keeps_uploads

    def server_in(self, uploads: ByClient, state: Tensors, round: Round) -> ByClient:
        self.server.run.uploads.save(round.number, state, uploads)
        return uploads
