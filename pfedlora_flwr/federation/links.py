"""The small links of the chain for uploads: the check for outliers, and uploads kept for an
audit."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.link import Link
from pfedlora_flwr.methods.method import Tensors, Upload

if TYPE_CHECKING:
    from pfedlora_flwr.federation.round import Round


class Outliers(Link):
    """Refuses the clients whose update is more than `clip-norm-factor` times as large as the
    round's median one (of two: the smaller).

    The size is `Method.magnitude`, a root mean square, so it does not depend on how much a client
    sends. A sum is one upload, and its own median."""

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        return x is not None and x.clip_norm_factor > 0 and not e.dp_of_users

    def refused(self, uploads: Mapping[int, Upload]) -> Mapping[int, str]:
        factor = self.server.execution.clip_norm_factor
        sizes = {client: self.method.magnitude(upload) for client, upload in uploads.items()}
        middle = statistics.median_low(sizes.values()) if sizes else 0.0
        if not middle:
            return {}
        return {
            client: (
                f"its update is {size / middle:.3g} times as large as the round's median one;"
                f" clip-norm-factor is {factor:g}"
            )
            for client, size in sizes.items()
            if not size <= factor * middle  # NaN, from values whose squares overflow, included
        }


class KeptUploads(Link):
    """Keeps a round's uploads, and the state that it began with, for `pfedlora audit`."""

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        return x is not None and x.audit_uploads

    def server_in(
        self, uploads: Mapping[int, Upload], state: Tensors, round: Round
    ) -> Mapping[int, Upload]:
        self.server.run.uploads.save(round.number, state, uploads)
        return uploads
