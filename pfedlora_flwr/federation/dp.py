"""Differential privacy of whole clients, as two links: updates are clipped, and the server adds
noise to their sum.

θ ← θ + (Σ_k clip(Δ_k) + N(0, (zS)²)) / K, Δ_k = θ_k − θ. K is what the keys say, whoever drops out:
a denominator that counts would tell who is there. All clients weigh the same.

McMahan et al. 2018, arXiv 1710.06963, without their sampling: ours is public. docs/privacy.md says
who is to be trusted with what."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.link import LEVELS, Link, Server
from pfedlora_flwr.methods.method import Method, Refused, Tensors, Upload, check_layout
from pfedlora_flwr.observers.observer import RunStopped
from pfedlora_flwr.rng import SERVER
from pfedlora_flwr.runs.budget import Budget
from pfedlora_flwr.training.loop import Visit

if TYPE_CHECKING:
    from pfedlora_flwr.federation.round import Round

_SHRUNK = (1.0, 1 - 1e-6, 1 - 1e-3, 0.0)
"""Shares of the bound that are tried until the sum θ + Δ, rounded to θ's dtype, is within it; no
change always is."""
_NORMALS = 4
"""Normal numbers whose sum is one draw: in a single one, the bits of floating point tell more
(Holohan and Braghin 2021, arXiv 2107.10138)."""


class Clipped(Link):
    """A client's update is no longer than `dp.clip`, and weighs 1.

    The client does that before masks, and the server again where it sees single updates."""

    hides_errors = True

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        return e.dp_enabled

    def client_out(self, upload: Upload, received: Tensors, visit: Visit) -> Upload:
        return clipped(upload, received, bound(self.experiment, received))

    def server_in(
        self, uploads: Mapping[int, Upload], state: Tensors, round: Round
    ) -> Mapping[int, Upload]:
        if self.experiment.secagg_enabled:
            return uploads
        limit = bound(self.experiment, state)
        return {client: clipped(upload, state, limit) for client, upload in uploads.items()}


class Noised(Link):
    """A round's updates become one: their noised sum over K. What comes after sees no other."""

    def __init__(self, experiment: Experiment, method: Method, server: Server | None) -> None:
        super().__init__(experiment, method, server)
        self._budget = Budget(self.server.run.dp_file, experiment)
        z = self._budget.noise
        self.note = (
            f"differential privacy: noise of standard deviation {z:.4g}·{experiment.dp_clip:g} on"
            " the sum of a round's updates"
        )

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        return x is not None and e.dp_enabled

    def begin(self, round: Round) -> None:
        """Raises RunStopped if the round would exceed `dp.epsilon`."""
        found = self._budget.beyond(round.sampled)
        if found is not None:
            raise RunStopped(
                f"round {round.number} would bring ε to {found:.4g}, dp.epsilon is"
                f" {self.experiment.dp_epsilon:g}",
                "dp",
            )

    def server_in(
        self, uploads: Mapping[int, Upload], state: Tensors, round: Round
    ) -> Mapping[int, Upload]:
        e = self.experiment
        assert e.dp_clip is not None
        self._budget.spend(round.visits)  # on disk before the draw
        # under masks the one upload is the mean of all
        weight = len(round.visits) if e.secagg_enabled else 1
        moved = noised(uploads, state, weight, self._budget.noise * e.dp_clip, e.sampled)
        return {SERVER: Upload(moved, 1)}


def noised(
    uploads: Mapping[int, Upload], state: Tensors, weight: int, deviation: float, sampled: int
) -> Tensors:
    """θ + (weight · Σ (θ_k − θ) + N(0, deviation²)) / sampled, in float64, each tensor in its own
    dtype."""
    moved = {}
    for name, tensor in state.items():
        before = tensor.double()
        total = torch.from_numpy(deviation * gaussian(tensor.numel())).view(before.shape)
        for upload in uploads.values():
            total += weight * (upload.tensors[name].double() - before)
        moved[name] = (before + total / sampled).to(tensor.dtype)
    return moved


def bound(e: Experiment, received: Tensors) -> float:
    """What an update is clipped to: `dp.clip`, less what rounding under masks may add."""
    assert e.dp_clip is not None
    return max(0.0, e.dp_clip - rounding(e, received))


def rounding(e: Experiment, shared: Tensors) -> float:
    """The largest L2 norm that rounding to levels under masks may add to an update; 0 without."""
    if not e.secagg_enabled:
        return 0.0
    size = sum(tensor.numel() for tensor in shared.values())
    return float(2 * e.secagg_clip / (LEVELS - 1) * size**0.5)


def clipped(upload: Upload, received: Tensors, limit: float) -> Upload:
    """The upload whose difference from what was received is at most so long, in the L2 norm over
    all tensors, of weight 1. One that is not finite stays: it is refused further on. Raises
    UserError for one of another layout than what was received."""
    try:
        check_layout(upload.tensors, received)
    except Refused as reason:
        raise UserError(f"its upload has no difference that dp can clip: {reason}") from None
    length = _length(upload.tensors, received)
    if not np.isfinite(length) or length <= limit:
        return Upload(upload.tensors, 1)
    for share in _SHRUNK:
        factor = share * limit / length
        shorter = {
            name: (like.double() + factor * (upload.tensors[name].double() - like.double())).to(
                like.dtype
            )
            for name, like in received.items()
        }
        if _length(shorter, received) <= limit:
            break
    return Upload(shorter, 1)


def gaussian(count: int) -> npt.NDArray[np.float64]:
    """So many independent standard normal numbers, from the operating system's entropy: the one
    draw of a run that no seed repeats."""
    words = np.frombuffer(secrets.token_bytes(8 * _NORMALS * count), "<u8").reshape(_NORMALS, count)
    uniform = ((words >> np.uint64(11)) + 0.5) * 2.0**-53  # within (0, 1)
    return ndtri(uniform).sum(0) / _NORMALS**0.5


def _length(tensors: Tensors, received: Tensors) -> float:
    """The L2 norm of the difference, over all tensors, in float64."""
    squares = [
        (tensors[name].double() - like.double()).square().sum() for name, like in received.items()
    ]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0
