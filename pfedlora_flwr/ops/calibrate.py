"""The temperature by which a client's outputs are divided before their softmax, so that its
probabilities are about as often right as they say (Guo et al. 2017, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch.nn.functional import cross_entropy

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.visit import with_encoded
from pfedlora_flwr.ops.evaluate import own_part
from pfedlora_flwr.runs.trained import Trained
from pfedlora_flwr.training.loop import infer

_BOUND = 20.0
"""The largest temperature; 1 over it is the smallest."""
_FEW = 50


def temperature(trained: Trained, say: Callable[[str], None]) -> float:
    """T > 0 with the smallest log-loss on the client's own validation part. Its classes stay as
    they are.

    say: is told T, and of how many samples it is. Raises UserError where the part is not here, or
    is empty."""
    samples = with_encoded(trained.method, trained.module, own_part(trained, "validation")[0])
    if not len(samples):
        raise UserError(f"client {trained.client} has no validation samples to calibrate by")
    logits = infer(trained.method.predictor(trained.module), samples).double()

    def loss(log: float) -> float:
        return float(cross_entropy(logits / np.exp(log), samples.labels))

    with torch.no_grad():
        found = minimize_scalar(loss, bounds=(-np.log(_BOUND), np.log(_BOUND)), method="bounded")
    t = float(np.exp(found.x))
    few = ", which are few" if len(samples) < _FEW else ""
    say(
        f"note: client {trained.client}: outputs are divided by {t:.3g}, from {len(samples)}"
        f" validation samples{few}"
    )
    return t
