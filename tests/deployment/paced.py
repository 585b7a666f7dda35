"""pFedLoRA that stops at gates, so that a test can kill a process at a known point of a round."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.training.loop import Samples, Visit

GATES = "PFEDLORA_TEST_GATES"
"""The environment variable that names the folder of the gates."""


class Paced(PFedLoRA):
    """Gates of round R: `training-K-R` and `trained-K-R` of client K, `aggregating-R` of the
    server."""

    def local_update(self, model: Any, received: Tensors, data: Samples, visit: Visit) -> Upload:
        _pass(f"training-{visit.client}-{visit.round}")
        upload = super().local_update(model, received, data, visit)
        _pass(f"trained-{visit.client}-{visit.round}")
        return upload

    def aggregate(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        merged = super().aggregate(uploads, state, round)
        _pass(f"aggregating-{round}")
        return merged


def _pass(gate: str) -> None:
    """Leaves this process's id at the gate, and waits while it is closed."""
    folder = Path(os.environ[GATES])
    (folder / gate).write_text(str(os.getpid()))
    deadline = time.monotonic() + 300
    while (folder / f"close-{gate}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
