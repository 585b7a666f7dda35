"""The keys of differential privacy."""

from __future__ import annotations

from dataclasses import dataclass

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.keys import Section, key


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
