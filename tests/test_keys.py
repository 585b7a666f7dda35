"""Every declared key refuses what its type, bounds, choices and form do not allow, in one line that
names the key, the value and what is allowed."""

from __future__ import annotations

import datetime
import math

import pytest

from pfedlora_flwr.config import all_keys
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.keys import Key

OF_TYPE = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
NO_TEXT = [True, [1], {"a": 1}, datetime.date(2026, 1, 1)]
LOOKED_UP = ("models", "observers", "sites")
"""Their items are told where they are used."""


def wrong(key: Key) -> list[object]:
    """Values that the key does not take: of other types, and at each end what is just beyond."""
    if key.choices is not None:
        return [*NO_TEXT, "?", "", " ", "x" * 90]
    if key.form:
        return NO_TEXT if key.name in LOOKED_UP else [",", "2:3,,", " , "]
    if key.kind is str:
        return NO_TEXT
    if key.kind is bool:
        return [*NO_TEXT[1:], 0, 1, 0.5, "yes", ""]
    found = [*NO_TEXT, "ten", "", "1:30", "0,1", "?" * 90, 2**63, math.inf, -math.inf, math.nan]
    found += [one for one in (key.above, key.below) if one is not None]
    found += [math.nextafter(key.low, -math.inf), key.low - 1] if key.low is not None else []
    found += [math.nextafter(key.high, math.inf), key.high + 1] if key.high is not None else []
    return [*found, 0.5, "3", 2.5] if key.kind is int else found


@pytest.mark.parametrize("key", all_keys().values(), ids=all_keys())
def test_a_wrong_value_is_a_line_with_the_key_the_value_and_what_is_allowed(key: Key) -> None:
    """What the command says of one: tests/test_wrong.py."""
    parts = [f"{end:g}" for end in (key.low, key.high, key.above, key.below) if end is not None]
    parts += [key.form.allowed] if key.form else key.choices or [OF_TYPE[key.kind]]
    for end in (key.low, key.high):
        assert end is None or key.parse(key.kind(end)) == end
    for value in [*wrong(key), *([] if key.auto else [None])]:
        with pytest.raises(UserError) as refused:
            key.parse(value)
        said, allowed = str(refused.value).split("; allowed: ", 1)
        number = key.kind is float and type(value) is int
        shown = repr(float(value) if number else value)
        assert said == f"{key.name} is {shown if len(shown) <= 80 else shown[:77] + '...'}"
        assert "\n" not in allowed
        assert allowed.startswith("auto, or ") == key.auto
        huge = isinstance(value, int | float) and not abs(value) < 2**63
        assert allowed.endswith(", finite and below 2^63") == huge
        assert allowed.endswith(" is none") == (key.form is not None and type(value) is str)
        assert not [part for part in parts if part not in allowed]
