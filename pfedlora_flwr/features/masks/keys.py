"""The keys of secure aggregation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pfedlora_flwr.errors import wrong
from pfedlora_flwr.keys import Section, key

LEVELS = 2**22
"""Levels into which masks cut the range [-secagg.clip, secagg.clip] of an element of an update."""


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

    @property
    def level(self) -> float:
        """The width of a level."""
        return 2 * self.clip / LEVELS

    @property
    def rounding(self) -> float:
        """The most by which rounding to levels changes an element."""
        return 2 * self.clip / (LEVELS - 1)

    def check(self) -> None:
        if self.enabled and math.frexp(self.clip)[0] != 0.5:
            raise wrong("secagg.clip", self.clip, "a power of two, such as 0.5, 1 or 2")
