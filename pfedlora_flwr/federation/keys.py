"""The keys of what is between clients and server: secure aggregation and differential
privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pfedlora_flwr.errors import UserError, wrong
from pfedlora_flwr.keys import Form, Listed, Section, integer, key

LEVELS = 2**22
"""Levels into which masks cut the range [-secagg.clip, secagg.clip] of an element of an update."""


@dataclass(frozen=True)
class Stop(Section):
    """When a run ends before its last round."""

    patience: int | None = key(
        None,
        "end the run after so many rounds that evaluate and bring no better mean on the validation"
        " parts; it is completed then; auto: all rounds",
        low=1,
    )
    score: str = key(
        "accuracy",
        "the score of stop.patience",
        choices=("accuracy", "balanced-accuracy", "macro-f1", "log-loss"),
        needs="stop.patience",
    )


@dataclass(frozen=True)
class DP(Section):
    """Differential privacy, of whole clients or of single training records."""

    level: str = key(
        "user",
        "differential privacy: user: of a client's updates, for whoever sees the server's states."
        " record: of a training record, for whoever sees the uploads; only pfedlora_plus on frozen,"
        " public encoders",
        choices=("user", "record"),
    )
    clip: float | None = key(
        None,
        "dp: the L2 norm S to which a client's update is clipped, or with dp.level=record a"
        " record's gradient; auto: none",
        above=0,
    )
    noise: float | None = key(
        None,
        "dp: z, the standard deviation of the noise is z·S, on a round's sum of updates, or with"
        " dp.level=record on each step's sum of gradients; 0: only clipping; auto: by dp.epsilon",
        low=0,
    )
    epsilon: float | None = key(
        None,
        "dp: ε for all planned participations of a client, from which z follows; the run, or with"
        " dp.level=record the client, ends before it would be exceeded; auto: by dp.noise",
        low=1e-3,
    )
    delta: float = key(
        1e-5,
        "dp: δ, below 1/clients, or with dp.level=record below 1/n_k",
        low=1e-12,
        below=1,
    )
    trained_down: bool = key(
        False,
        "dp: allow adapter.down=trained, which multiplies the noise of two matrices",
    )

    @property
    def enabled(self) -> bool:
        """Whether any key asks for it."""
        return (self.clip, self.noise, self.epsilon) != (None, None, None)

    @property
    def of_users(self) -> bool:
        """That of whole clients."""
        return self.enabled and self.level == "user"

    @property
    def norm(self) -> float:
        """S, of a run that has one."""
        assert self.clip is not None
        return self.clip

    def check(self) -> None:
        if not self.enabled:
            return
        if self.clip is None:
            what = "an update" if self.of_users else "a record's gradient"
            raise UserError(f"dp.clip is not set: give the L2 norm that {what} is clipped to")
        if (self.noise is None) == (self.epsilon is None):
            both = "neither is" if self.noise is None else "both are"
            raise UserError(f"dp needs one of dp.noise and dp.epsilon, and {both} set")


@dataclass(frozen=True)
class SecAgg(Section):
    """Secure aggregation."""

    enabled: bool = key(
        False,
        "secure aggregation: the server learns sums of updates, not single updates",
    )
    clip: float = key(
        1.0,
        "secagg: the largest change of an element in a visit; beyond it the client refuses; a"
        " power of two",
        above=0,
    )
    max_samples: int = key(
        10_000,
        "secagg: the largest number of training samples (n_k) of a client; beyond it the client"
        " refuses",
        low=1,
        high=1_000_000,
    )

    def check(self) -> None:
        if self.enabled and math.frexp(self.clip)[0] != 0.5:
            raise wrong("secagg.clip", self.clip, "a power of two, such as 0.5, 1 or 2")


@dataclass(frozen=True)
class HeldOut(Section):
    """Clients that are never sampled."""

    clients: int = key(
        0,
        "H, the last clients, which have data and are never sampled; adapted and evaluated at the"
        " end, as clients that come later",
        name="clients-held-out",
        low=0,
    )
    rounds: int = key(10, "visits of a held-out client when it is adapted", low=1)
    samples: Listed[int | None] = key(
        "all",
        "training samples with which a held-out client is adapted: all, or a number; several,"
        " each for an adaptation of its own",
        form=Form("all, or integers ≥ 2", lambda w: None if w == "all" else integer(w, 2)),
    )
    every: int = key(
        0,
        "adapt the held-out clients after every n-th round, too; 0: only at the end",
        low=0,
    )

    def check(self) -> None:
        if len({*self.samples}) < len(self.samples):
            raise UserError(f"held-out.samples is {self.samples!r}; allowed: each number once")
