"""Sums where no client's own are to be read, under masks or with differential privacy: one layout
for the state and all uploads, in units in which masks and noise take them.

Nobody is told what was added of a client: it is what the model keeps with which its visit begins.
Under masks a difference waits until enough clients have one, since the sum of a round's differences
is the one client's that changed. With differential privacy all rounds but the last release a noised
sum: a record changes it by (w₃ e_y, w₁ z e_yᵀ, w₂ z zᵀ), off-diagonals times √2, |z| ≤ 1."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.keys import key
from pfedlora_flwr.methods.method import Method, Tensors, Upload
from pfedlora_flwr.methods.moments import positive, triangle

_WHOLE = ("counts", "right", "changing")
"""What has whole numbers."""
_LEAST = 1.0
"""Levels of a client's own deviation. Noise in whole levels then costs no more than that which is
not rounded (tests/methods/test_sums_private.py computes it from 0.5 on)."""


class Hidden(Method):
    """What methods of sums have in common where clients are hidden."""

    adds = True
    squares: ClassVar[bool] = True
    """Whether G is sent."""

    @dataclass(frozen=True)
    class Options(Method.Options):
        prefix: ClassVar[str | None] = "sums."
        adds: ClassVar[bool] = True
        changing: int | None = key(
            None,
            "under masks: how many clients of a round must have changed, or be new, before they"
            " send that; at least secagg.threshold of them; auto: all of a round",
            low=3,
            needs="secagg.enabled",
        )
        dp_moment: float = key(
            0.3,
            "with dp: w₂, the weight of the second moment in what is noised; 0: none, for fewer"
            " than about 5,000 records; that of the class sums is √(1 − w₂² − w₃²)",
            low=0,
            below=0.9,
        )
        dp_counts: float = key(0.3, "with dp: w₃, the weight of the counts", above=0, below=0.4)
        honest: int | None = key(
            None,
            "with dp.level=record under masks: how many clients of a sum add their noise, whoever"
            " is lost or colludes; auto: more than half of a round",
            low=1,
            needs="secagg.enabled",
        )

        @property
        def weights(self) -> dict[str, float]:
            """w of each part of a record, squares of which add up to 1."""
            w2, w3 = self.dp_moment, self.dp_counts
            return {"counts": w3, "sums": (1 - w2**2 - w3**2) ** 0.5, "gram": w2}

    @classmethod
    def default_keys(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"dp.clip": 1.0} if given.get("dp.level") == "record" else {}

    @classmethod
    def check_experiment(cls, experiment: Experiment) -> None:
        e, told = experiment, f"allowed with {experiment.method}"
        if e.rounds < 2:
            raise UserError(
                f"rounds is {e.rounds}; {told}: at least 2, for the last brings the sums"
            )
        if e.noises_sums:
            public = e.normalise == "model" or e.data.text_column is not None
            if not public:
                raise UserError(
                    f"normalise is {e.normalise}; {told} and dp.level=record: model, because the"
                    " mean and deviation of the federation's data are functions of every record"
                )
            if e.dp.clip not in (None, 1.0):
                raise UserError(f"dp.clip is {e.dp.clip:g}; {told} and dp.level=record: 1")
            if e.noising and e.dp.noise is None:
                raise UserError(
                    f"dp.epsilon is {e.dp.epsilon}; {told}, dp.level=record and secagg.enabled:"
                    " auto, with dp.noise, by which clients choose the masks' range"
                )
            if e.noising > e.sampled:
                raise UserError(f"sums.honest is {e.noising}; {told}: at most {e.sampled}")

    def check_samples(self, count: int) -> None:
        """Raises UserError where a client's sums may be beyond the range of the masks."""
        most = self.experiment.secagg.max_samples
        if self.experiment.hides_uploads and count > most:
            raise UserError(f"it has more than secagg.max-samples training samples, {most}")

    @property
    @abstractmethod
    def width(self) -> int:
        """d."""

    @abstractmethod
    def nothing(self) -> Tensors:
        """Sums over no sample."""

    def added(self, uploads: Mapping[int, Upload], state: Tensors, round: int) -> Tensors:
        """What clients count of validation samples and of themselves is of this round alone."""
        if self.experiment.noises and not self.experiment.releases(round):
            return state
        added = {n: t * (n not in ("right", "changing")) for n, t in state.items()}
        for upload in uploads.values():
            for name, tensor in added.items():
                tensor += upload.samples * (upload.tensors[name] - state[name])
        if self.experiment.noises:
            return added
        return added | {n: (added[n] / self.units[n]).round() * self.units[n] for n in _WHOLE}

    @property
    def uses_rounds(self) -> bool:
        return bool(self.experiment.noises)  # of which the last releases nothing

    @property
    def hides(self) -> bool:
        """Whether no client's own sums are to be read."""
        return bool(self.experiment.hides_clients)

    @property
    def changing(self) -> int:
        """How many clients of a round must have a difference before they send it."""
        return self.options.changing or self.experiment.sampled

    @cached_property
    def scale(self) -> float:
        """What a weighted sum's 1 is in an upload with dp. Where clients add the noise it brings
        n_k and ten deviations into the range of the masks."""
        e = self.experiment
        if not e.noising:
            return 1.0
        assert e.dp.noise is not None
        return e.secagg.clip / (e.secagg.max_samples + 10 * e.dp.noise / e.noising**0.5)

    @cached_property
    def units(self) -> dict[str, Tensor]:
        """What 1 of a sum is in a state that hides clients. Numbers that are whole are so in
        levels of masks, and arrive exactly. With dp these are weights, by which a record changes
        a state by at most 1, what rounding to levels adds included."""
        e, one = self.experiment, torch.ones(()).double()
        level = e.secagg.level
        if not e.noises:
            part = e.secagg.clip / e.secagg.max_samples
            return dict.fromkeys(_WHOLE, one * level) | dict.fromkeys(("sums", "gram"), one * part)
        rows, columns = triangle(self.width, torch.device("cpu"))
        share = 1.0
        if e.noising:
            numbers = sum(t.numel() for t in self.nothing().values())
            share -= level / self.scale * numbers**0.5
            if share <= 0:
                raise UserError(
                    f"secagg.max-samples is {e.secagg.max_samples}; allowed with dp.level=record:"
                    " less, for rounding under masks changes as much as a record"
                )
            assert e.dp.noise is not None
            if e.dp.noise / e.noising**0.5 * self.scale / level < _LEAST:
                raise UserError(
                    f"dp.noise is {e.dp.noise:g}; allowed with dp.level=record and masks: more, or"
                    " a lower secagg.max-samples, for a client's noise is less than a level of the"
                    " masks"
                )
        units = {n: one * w * self.scale * share for n, w in self.options.weights.items()}
        units["gram"] = units["gram"] * torch.where(rows == columns, one, one * 2**0.5)
        if not self.squares:
            units["gram"] = units["gram"][:0]
        return units | {"right": one}

    def read(self, told: Tensors) -> Tensors:
        """What was received, as sums; with dp, a class of which noise leaves less than half a
        sample has none, and another at least one."""
        if not self.hides:
            return told
        units = {n: self.units[n].to(t.device) for n, t in told.items()}
        found = {n: torch.where(units[n] > 0, t / units[n], 0.0) for n, t in told.items()}
        if self.experiment.noises:
            counts = found["counts"]
            found["counts"] = torch.where(counts > 0.5, counts.clamp(min=1), 0.0)
        return found

    def tidy(self, matrix: Tensor) -> Tensor:
        """The matrix, with dp what of it is positive semidefinite."""
        return positive(matrix) if self.experiment.noises else matrix
