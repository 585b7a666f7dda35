"""How far a running run is: in words, in rounds, and in seconds that are left."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.runs.directory import Row
from pfedlora_flwr.runs.lines import SoFar

_STARTING = {
    "superlink": "starting: the SuperLink",
    "submitting": "starting: `flwr run`",
    "starting": "starting: the server",
    "connecting": "starting: Ray and its actors",
    "stopping": "stopping…",
}
"""What a run waits for before it has a round, by phase."""


class Course:
    """A run as it is looked at, several times a second.

    guess: the seconds that its rounds may take, asked for at most once and only until clients have been timed.
    """

    def __init__(self, e: Experiment, guess: Callable[[], float] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._e = e
        self._guess = guess
        self._clock = clock
        self._guessed: float | None = None
        self._running = (0, 0.0)  # the round that clients train in, and when it was first seen
        self.rounds = 0.0
        self.words = "starting"

    def look(self, state: Row | None, so_far: SoFar) -> None:
        """Takes up what `execute` shows: `rounds`, those that are done, the running one by its clients, and `words`."""
        phase, running = (state["phase"], state.get("round", 0)) if state else ("", 0)
        within = phase in ("training", "evaluating") and bool(state)
        if within and running != self._running[0]:
            self._running = running, self._clock()
        done = so_far.round
        share = state["done"] / max(1, state["of"]) if state and phase == "training" and running > done else 0.0
        self.rounds = done + share
        left = self.left(state, so_far)
        parts = [_now(self._e, state, phase, running) if state else "" if so_far.lines else _STARTING["starting"], *_figures(so_far)]
        if phase != "stopping":
            parts.append(f"about {duration(left)} left" if left is not None else self._guess_in_words())
        self.words = " · ".join(part for part in parts if part)

    def left(self, state: Row | None, so_far: SoFar) -> float | None:
        """Seconds for the rounds that are left: by the last five, or before there is one by the clients of the running one; else None."""
        if (by_rounds := seconds_left(so_far, self._e.rounds)) is not None:
            return by_rounds
        if state and state["phase"] == "training" and state["done"]:
            passed = self._clock() - self._running[1]
            return max(0.0, passed / state["done"] * state["of"] * (self._e.rounds - so_far.round) - passed)
        return None

    def _guess_in_words(self) -> str:
        if self._guessed is None and self._guess is not None:
            self._guessed = self._guess()
        return "" if self._guessed is None else f"the rounds may take {duration(self._guessed)} (a guess)"


def seconds_left(so_far: SoFar, total: int) -> float | None:
    """Seconds for the rounds up to `total` at the mean of the last five; None before the first one is done."""
    return (total - so_far.round) * fmean(so_far.recent) if so_far.recent else None


def round_line(e: Experiment, so_far: SoFar) -> str:
    """The last round's figures in a line."""
    left = seconds_left(so_far, e.rounds)
    parts = [f"round {so_far.round}/{e.rounds}", *_figures(so_far), f"about {duration(left)} left" if left is not None else ""]
    return " · ".join(part for part in parts if part)


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


def _now(e: Experiment, state: Row, phase: str, running: int) -> str:
    """What the server is doing."""
    if phase == "training":
        return f"round {running}/{e.rounds} · {state['done']} of {state['of']} clients"
    if phase == "evaluating":
        return f"round {running}/{e.rounds} · evaluating: {state['done']} of {state['of']} clients"
    if phase == "connecting" and state["done"]:
        return f"starting: {state['done']} of {state['of']} clients connected"
    return _STARTING.get(phase) or f"round {running}/{e.rounds}"


def _figures(so_far: SoFar) -> list[str]:
    """The accuracy that was found last, and what has been sent."""
    return [f"accuracy {so_far.accuracy:.4f}", megabytes(so_far.bytes)] if so_far.lines else []
