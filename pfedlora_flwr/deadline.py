"""A call with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, ask: Callable[[], T]) -> T:
    """What `ask` returns or raises, or a TimeoutError: then it goes on in its thread, as looking up
    a host's name may, for minutes."""
    answers: list[T] = []
    errors: list[Exception] = []

    def answer() -> None:
        try:
            answers.append(ask())
        except Exception as error:
            errors.append(error)

    asking = threading.Thread(target=answer, daemon=True)
    asking.start()
    asking.join(seconds)
    if answers:
        return answers[0]
    raise errors[0] if errors else TimeoutError(f"no answer in {seconds:g} seconds")
