"""The keys of when a run ends."""

from __future__ import annotations

from dataclasses import dataclass

from pfedlora_flwr.keys import Section, key


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
