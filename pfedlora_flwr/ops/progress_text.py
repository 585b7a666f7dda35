"""The progress of a run in words, in rounds, and in remaining seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.rules import PHASES
from pfedlora_flwr.runs.layout import Row
from pfedlora_flwr.runs.lines import SoFar, seconds_left

_STOPPING, _ENDING = "stopping…", "ending: Flower's processes"
_STARTING = {
    "checking": "starting: checks",
    "superlink": "starting: the SuperLink",
    "submitting": "starting: `flwr run`",
    "starting": "starting: the server",
    "connecting": "starting: Ray and its actors",
    "stopping": _STOPPING,
}
"""What a run waits for before it has a round, by phase."""
_SHORT_GUESS = 60.0
"""Seconds below which a guess is given no number."""


@dataclass
class Course:
    """A run as it is looked at, several times a second.

    guess: the seconds that its rounds may take, asked for at most once and only until clients have
    been timed."""

    e: Experiment
    guess: Callable[[], float] | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._guessed: float | None = None
        self._running = (0, 0.0)  # the round that clients train in, and when it was first seen
        self.rounds = 0.0
        self.parts = [_STARTING["checking"]]
        self.stopping = False

    def look(self, state: Row | None, so_far: SoFar) -> None:
        """Takes up what `execute` shows: `rounds`, those that are done, the running one by its
        clients, and `parts`, in words."""
        phase, running = (state["phase"], state.get("round", 0)) if state else ("", 0)
        within = phase in ("training", "evaluating") and bool(state)
        if within and running != self._running[0]:
            self._running = running, self.clock()
        self.stopping = phase == "stopping"
        if not self.stopping:  # the bar stays where it was
            self.rounds = so_far.round + (
                _share(state) if state and running > so_far.round else 0.0
            )
        now = _now(self.e, state, so_far)
        left = self.left(state, so_far)
        time_left = f"about {duration(left)} left" if left is not None else self._guess_in_words()
        if now in (_ENDING, _STOPPING):
            time_left = ""
        self.parts = [*filter(None, (now, time_left, *_figures(so_far)))]

    def words(self, width: float = inf) -> str:
        """As many of the parts, the most telling ones first, as `width` columns hold."""
        fitting = [" · ".join(self.parts[:count]) for count in range(1, len(self.parts) + 1)]
        return next((text for text in reversed(fitting) if len(text) <= width), fitting[0])

    def left(self, state: Row | None, so_far: SoFar) -> float | None:
        """Seconds for the rounds that are left: by the last five, or before there is one by the
        clients of the running one; else None."""
        to_do = self.e.rounds - so_far.round
        passed = self.clock() - self._running[1] if self._running[0] > so_far.round else 0.0
        if (by_rounds := seconds_left(so_far, self.e.rounds)) is not None:
            return by_rounds - min(passed, by_rounds / max(1, to_do))
        if not (state and passed and (share := _share(state))):
            return None
        return max(0.0, passed / share * to_do - passed)

    def _guess_in_words(self) -> str:
        if self._guessed is None and self.guess is not None:
            self._guessed = self.guess()
        if self._guessed is None:
            return ""
        long = self._guessed > _SHORT_GUESS
        return (
            f"the rounds may take {duration(self._guessed) if long else 'under a minute'} (a guess)"
        )


def round_line(e: Experiment, so_far: SoFar) -> str:
    """The last round's figures in a line."""
    left = seconds_left(so_far, e.rounds)
    time_left = [] if left is None else [f"about {duration(left)} left"]
    return " · ".join([f"round {so_far.round}/{e.rounds}", *time_left, *_figures(so_far)])


def duration(seconds: float) -> str:
    """Seconds in words: `40 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def megabytes(count: float) -> str:
    """Bytes in words."""
    return f"{count / 1e6:.2f} MB"


def _share(state: Row) -> float:
    """How much of the running round is trained."""
    if state["phase"] != "training":
        return float(state["phase"] == "evaluating")
    return state["done"] / max(1, state["of"])


def _now(e: Experiment, state: Row | None, so_far: SoFar) -> str:
    """What the server is doing."""
    if not state:
        return _ENDING if so_far.lines else _STARTING["starting"]
    phase, running = state["phase"], state.get("round", 0)
    if phase == "training":
        return f"round {running}/{e.rounds} · {state['done']} of {state['of']} clients"
    if phase == "evaluating":
        return f"round {running}/{e.rounds} · evaluating: {state['done']} of {state['of']} clients"
    if phase in PHASES:
        return f"{PHASES[phase]}: {state['done']} of {state['of']}"
    if phase == "connecting" and state["done"]:
        return f"starting: {state['done']} of {state['of']} clients are there"
    return _STARTING.get(phase) or f"round {running}/{e.rounds}"


def _figures(so_far: SoFar) -> list[str]:
    """The accuracy that was found last, if any, and what has been sent."""
    found = [] if so_far.accuracy is None else [f"accuracy {so_far.accuracy:.4f}"]
    return [*found, f"{megabytes(so_far.bytes)} sent"] if so_far.lines else []
