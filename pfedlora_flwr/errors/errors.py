"""The errors that are shown to users as one line."""

from __future__ import annotations

import importlib
from typing import Any


class UserError(ValueError):
    """A user's mistake. Its text is one line: what, which value, what is allowed. Never shown with
    a traceback."""


class UserCodeError(UserError):
    """A user's own model or method has failed: whose it is, what it raised and where. The traceback
    is its cause's."""


def needed(module: str, why: str, install: str) -> Any:
    """An optional library's module. Raises UserError where it is not installed.

    why: what needs which library, in words. install: what pip is to be given."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"{why}, which is not installed: pip install {install}") from None


def wrong(key: str, value: object, allowed: str, given: str = "") -> UserError:
    """The error of a key's value. given: by what no more than `allowed` is."""
    said = f"{value:g}" if isinstance(value, float) else repr(value)
    return UserError(f"{key} is {said}; allowed{given and f' with {given}'}: {allowed}")
