"""The errors that are shown to users as one line."""

from __future__ import annotations


class UserError(ValueError):
    """A user's mistake. Its text is one line: what, which value, what is allowed. Never shown with
    a traceback."""


class UserCodeError(UserError):
    """A user's own model or method has failed: whose it is, what it raised and where. The traceback
    is its cause's."""
