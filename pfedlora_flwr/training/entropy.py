"""Draws from the operating system's entropy, which no seed repeats: the noise of differential
privacy, and its batches."""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

_NORMALS = 4
"""Normal numbers whose sum is one draw: in a single one, the bits of floating point tell more
(Holohan and Braghin 2021, arXiv 2107.10138)."""


def gaussian(count: int) -> npt.NDArray[np.float64]:
    """So many independent standard normal numbers."""
    from scipy.special import ndtri  # at its first use: it takes a quarter of a second

    words = _words(_NORMALS * count).reshape(_NORMALS, count)
    # within (0, 1): with one bit more the largest would be rounded to 1, which gives infinity
    uniform = ((words >> np.uint64(12)) + 0.5) * 2.0**-52
    return ndtri(uniform).sum(0) / _NORMALS**0.5


def one_in(parts: int, count: int) -> npt.NDArray[np.bool_]:
    """For each of `count`, whether it is drawn: independently, with probability 1/parts, and at
    most 2⁻⁶⁴ less."""
    if parts == 1:
        return np.ones(count, dtype=bool)
    return _words(count) < np.uint64(2**64 // parts)


def _words(count: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(secrets.token_bytes(8 * count), "<u8")
