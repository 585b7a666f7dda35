"""Differential privacy of whole clients, as two links: updates are clipped, and the server adds
noise to their sum.

θ ← θ + (Σ_k clip(Δ_k) + N(0, (zS)²)) / K, Δ_k = θ_k − θ. K is what the keys say, whoever drops out:
a denominator that counts would tell who is there. All clients weigh the same.

McMahan et al. 2018, arXiv 1710.06963, without their sampling: ours is public. docs/privacy.md says
who is to be trusted with what."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pfedlora_flwr.errors import UserError, wrong
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.dp.accountant import finite
from pfedlora_flwr.features.dp.budget import Budget, file_of
from pfedlora_flwr.features.dp.ledger import Ledger, terms_of
from pfedlora_flwr.features.dp.spent import Spent
from pfedlora_flwr.federation.link import Drawn, Link, Server
from pfedlora_flwr.methods.hidden_sums import Hidden
from pfedlora_flwr.methods.method import ByClient, Method, Refused, Tensors, Upload, check_layout
from pfedlora_flwr.observers.observer import RunStopped
from pfedlora_flwr.rng import SERVER
from pfedlora_flwr.runs.rows import SPENT, VisitRow
from pfedlora_flwr.training.entropy import gaussian
from pfedlora_flwr.training.loop import Visit

if TYPE_CHECKING:
    from pfedlora_flwr.federation.messages import Instruction
    from pfedlora_flwr.federation.round import Round

logger = logging.getLogger(__name__)
_SHRUNK = (1.0, 1 - 1e-6, 1 - 1e-3, 0.0)
"""Shares of the bound that are tried until the sum θ + Δ, rounded to θ's dtype, is within it; no
change always is."""


class Clipped(Link):
    """A client's update is no longer than `dp.clip`, and weighs 1.

    The client does that before masks, and the server again where it sees single updates."""

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        return e.dp.of_users

    def client_out(self, upload: Upload, received: Tensors, visit: Visit) -> Upload:
        part = self.method.renewed(received, visit.round)
        return clipped(upload, part, bound(self.experiment, part))

    def server_in(self, uploads: ByClient, state: Tensors, round: Round) -> ByClient:
        if self.experiment.hides_uploads:
            return uploads
        part = self.method.renewed(state, round.number)
        limit = bound(self.experiment, part)
        return {client: clipped(upload, part, limit) for client, upload in uploads.items()}


class OfRecords(Link):
    """With `dp.level=record` clients noise what they train, before it is an upload
    (`models/private.py`). All that is made of uploads has their ε."""

    note = "differential privacy: clients noise the gradients of their records themselves"

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        return e.noises_gradients

    def draw(self, told: Instruction, folder: Path, samples: int, ledger: Ledger | None) -> Drawn:
        e = self.experiment
        spent = Spent(folder, e, told.client, samples, self.method.record_epochs(e))
        if ledger:
            ledger.spend(told.token, terms_of(e, spent))
        noise = spent.spend(told.round, told.version)  # on disk before the draw
        return noise, {"epsilon": spent.told}

    def begin(self, round: Round) -> None:
        Budget(file_of(self.server.run), self.experiment).ask()

    def line(self, visits: Sequence[VisitRow]) -> dict[str, Any]:
        spent = [visit["epsilon"] for visit in visits if "epsilon" in visit]
        return {"epsilon": max(spent)} if spent else {}


class OwnNoise(Link):
    """Under masks each client adds its part of the noise on a sum of records: a sum with as many as
    `Experiment.noising` honest clients has all of it.

    What is noised is a whole number of levels, so rounding changes the noise alone, which is then
    in levels, too; `OfSums.units` takes off what a record may change by its own rounding. A number
    beyond the range is cut after the noise."""

    note = "differential privacy: each client noises its sums itself"

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        return e.noising > 0

    def client_out(self, upload: Upload, received: Tensors, visit: Visit) -> Upload:
        e = self.experiment
        if not e.releases(visit.round):
            return upload
        assert isinstance(self.method, Hidden)
        level, sent = e.secagg.level, {}
        deviation = Budget(None, e).noise / e.noising**0.5 * self.method.scale
        for name, before in received.items():
            own = ((upload.tensors[name] - before) / level).round() * level
            drawn = torch.from_numpy(gaussian(own.numel())).to(own).view(own.shape)
            sent[name] = before + (own + deviation * drawn).clamp(-e.secagg.clip, e.secagg.clip)
        return Upload(sent, 1)


class Noised(Link):
    """A round's updates become one: their noised sum over K. What comes after sees no other."""

    _spent: float | None = None
    """The largest ε of a client after the round that was last begun; None: nothing was drawn."""

    def __init__(self, experiment: Experiment, method: Method, server: Server | None) -> None:
        """Raises UserError without dp-accounting, or for a clip that rounding would use up."""
        super().__init__(experiment, method, server)
        if experiment.dp.of_users:
            check_clip(experiment, largest_part(experiment, method))
        self._budget = Budget(file_of(self.server.run), experiment)
        self._budget.epsilon(1)
        z = self._budget.noise
        if not experiment.noising:
            self.note = (
                f"differential privacy: noise of standard deviation {z:.4g}·{experiment.dp.clip:g}"
                " on the sum of a round's updates"
            )

    @classmethod
    def is_used(cls, e: Experiment, x: Execution | None) -> bool:
        return x is not None and e.noises_rounds

    def begin(self, round: Round) -> None:
        """Raises RunStopped if the round would exceed `dp.epsilon`."""
        self._spent = None
        if not self.experiment.releases(round.number):
            return
        found = self._budget.beyond(round.sampled)
        if found is not None:
            raise RunStopped(
                f"round {round.number} would bring ε to {found:.4g}, dp.epsilon is"
                f" {self.experiment.dp.epsilon:g}",
                SPENT,
            )

    def server_in(self, uploads: ByClient, state: Tensors, round: Round) -> ByClient:
        e = self.experiment
        releases = e.releases(round.number)
        if releases:
            self._budget.spend(round.visits)  # on disk before the draw
        self._spent = self._budget.epsilon(self._budget.most_with({}))
        if not releases:
            return uploads
        # under masks the one upload is the mean of all
        weight = len(round.visits) if e.hides_uploads else 1
        part = self.method.renewed(state, round.number)  # no noise on what stays as it is
        noise = 0.0 if e.noising else self._budget.noise * e.dp.norm
        moved = noised(uploads, part, weight, noise, e.sampled)
        return {SERVER: Upload(moved, e.sampled if self.method.adds else 1)}

    def line(self, visits: Sequence[VisitRow]) -> dict[str, Any]:
        return {} if self._spent is None else {"epsilon": finite(self._spent)}


def noised(
    uploads: ByClient, state: Tensors, weight: int, deviation: float, sampled: int
) -> Tensors:
    """θ + (weight · Σ (θ_k − θ) + N(0, deviation²)) / sampled, in float64, each tensor in its own
    dtype."""
    moved = {}
    for name, tensor in state.items():
        before = tensor.double()
        total = torch.zeros_like(before)
        if deviation:
            total += torch.from_numpy(deviation * gaussian(tensor.numel())).view(before.shape)
        for upload in uploads.values():
            total += weight * (upload.tensors[name].double() - before)
        moved[name] = (before + total / sampled).to(tensor.dtype)
    return moved


def bound(e: Experiment, part: Tensors) -> float:
    """What an update of this part is clipped to: `dp.clip`, less what rounding under masks may
    add."""
    return max(0.0, e.dp.norm - rounding(e, part))


def rounding(e: Experiment, part: Tensors) -> float:
    """The largest L2 norm that rounding to levels under masks may add to an update; 0 without."""
    return float(e.secagg.rounding * size_of(part) ** 0.5) if e.hides_uploads else 0.0


def largest_part(e: Experiment, method: Method) -> Tensors:
    """Of the parts of the first state that rounds renew, the largest."""
    # imported here: a client's process needs none of it
    from pfedlora_flwr.federation.server_state import first_state

    state = first_state(e, method)
    return max((method.renewed(state, t) for t in range(1, e.rounds + 1)), key=size_of)


def check_clip(e: Experiment, part: Tensors) -> None:
    """Raises UserError for a clip that rounding under masks would use up."""
    if e.dp.norm <= (least := rounding(e, part)):
        bound = f"above {least:.2g}, which rounding under masks may add to an update"
        raise wrong("dp.clip", e.dp.norm, f"{bound}; lower secagg.clip", "secagg.enabled")


def size_of(part: Tensors) -> int:
    """How many numbers it has."""
    return sum(tensor.numel() for tensor in part.values())


def resolution(part: Tensors) -> float:
    """The largest L2 norm of what rounding each element to its dtype changes: an update that is not
    longer is mostly rounding."""
    halves = (t.double() * (torch.finfo(t.dtype).eps / 2) for t in part.values())
    return sum(float(half.square().sum()) for half in halves) ** 0.5


def clipped(upload: Upload, received: Tensors, limit: float) -> Upload:
    """The upload whose difference from what was received is at most so long, in the L2 norm over
    all tensors, of weight 1. Raises UserError for one of another layout than what was received.

    If that has no finite length, it is what was received: no change. Were it refused, that alone
    would tell of the client's data."""
    try:
        check_layout(upload.tensors, received)
    except Refused as reason:
        raise UserError(f"its upload has no difference that dp can clip: {reason}") from None
    length = _length(upload.tensors, received)
    if not np.isfinite(length):
        logger.warning("an update is not finite: with dp it counts as no change")
        return Upload(dict(received), 1)
    if length <= limit:
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


def _length(tensors: Tensors, received: Tensors) -> float:
    """The L2 norm of the difference, over all tensors, in float64."""
    squares = [
        (tensors[name].double() - like.double()).square().sum() for name, like in received.items()
    ]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0
