"""What a round's clients tell together beside their update: the means of their scores, and a digest
of their models. They are whole numbers inside the masked sum, so that none is told by one client.

A share in [0, 1] counts in units of 2⁻²⁰: the mean differs from the exact one by 2⁻²¹ at most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.features.masks.keys import LEVELS
from pfedlora_flwr.federation.messages import counts_from_metrics
from pfedlora_flwr.methods.method import Refused
from pfedlora_flwr.runs.checkpoint import Summed
from pfedlora_flwr.training.metrics import OF_DECISIONS

UNIT = 2**20
"""Of 1,023 clients, the most there may be, the shares add up to less than 2³⁰."""
_WORDS = 8
"""Of a SHA-256, each of 32 bits; they wrap."""
_SHARES = ("accuracy", "validation_accuracy", *OF_DECISIONS)
SIZE = 1 + len(_SHARES) + _WORDS
"""How many clients were evaluated, the sums of their shares, and of their hashes' words."""
Words = npt.NDArray[np.int64]


def figures_of(metrics: Mapping[str, Any]) -> Words:
    """One client's, [SIZE], from its report."""
    found = np.zeros(SIZE, np.int64)
    if "test" in metrics:  # it was told to evaluate
        told = counts_from_metrics(metrics).line()
        found[:-_WORDS] = [1, *(round(UNIT * told[name]) for name in _SHARES)]
    # with dp there is none
    sha256 = bytes.fromhex(str(metrics.get("model_sha256", "")))
    found[-_WORDS:] = np.frombuffer(sha256 or bytes(4 * _WORDS), "<u4")
    return found


def read(total: Words, clients: int, evaluated: bool) -> Summed:
    """What the sum tells, of so many clients. Raises Refused for scores that cannot be: one of the
    clients has added another number, nobody can tell which.

    total: [SIZE], modulo 2³²; of each client there is the level of zero in it, too."""
    told = (total - clients * (LEVELS // 2)) % 2**32
    count, shares = int(told[0]), told[1:-_WORDS]
    words = told[-_WORDS:].astype("<u4")
    models = words.tobytes().hex() if words.any() else ""
    if count != (clients if evaluated else 0) or (shares > count * UNIT).any():
        raise Refused(
            "the scores in the sum cannot be: some client's are wrong, nobody can tell whose"
        )
    means = dict(zip(_SHARES, (shares / (UNIT * clients)).tolist(), strict=True))
    return Summed(means | {"evaluated": count} if evaluated else None, models)
