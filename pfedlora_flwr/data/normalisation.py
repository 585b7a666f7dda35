"""Mean and standard deviation of each channel or feature, in bounded memory; and the precision that
float32 keeps after normalisation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.source import Indices, Inputs
from pfedlora_flwr.errors import some

Constants = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation: of a channel of images in [0, 1] or of series, or of a feature of
vectors."""
Numbers = npt.NDArray[np.float64]
_BYTES = 4_000_000
"""Of the inputs looked at together; in float64 eight times as many."""
_ROUNDING = 4
"""Steps between two numbers at a mean: what varies less is constant except for rounding."""
_LOOKED_AT = 1_000_000
"""Values of a channel or feature, from the first, whose distinct ones are counted."""


def of_all_pixels(images: npt.NDArray[np.uint8]) -> Constants:
    """Of all these images [n, height, width, channels]. A constant channel has the standard
    deviation 1, as in `of_parts`."""
    flat = images.reshape(-1, images.shape[-1])
    mean, second = np.zeros(flat.shape[1]), np.zeros(flat.shape[1])
    # bounded memory, and the same sums everywhere
    for part in np.array_split(flat, max(1, len(flat) // 1_000_000)):
        mean += part.sum(0, dtype=np.float64)
        second += (part.astype(np.float64) ** 2).sum(0)
    mean /= 255 * len(flat)
    std = np.sqrt(np.maximum(second / (255**2 * len(flat)) - mean**2, 1e-12))
    std[flat.min(0) == flat.max(0)] = 1
    return tuple(mean.tolist()), tuple(std.tolist())


def of_parts(inputs: Inputs, parts: Iterable[Indices], missing: str = "refuse") -> Constants:
    """Of the inputs at these indices. What is constant, except for the rounding of its type, has
    the standard deviation 1: normalised it is 0.

    missing: of `data.missing`: otherwise NaN does not count, and with median that is the mean; what
    has no value has the mean 0."""
    each = max(1, _BYTES // inputs[:1].nbytes)
    indices = np.sort(np.concatenate(list(parts)))
    if missing != "refuse":
        return _of_present(inputs[indices], missing)
    pieces = (inputs[indices[start : start + each]] for start in range(0, len(indices), each))
    mean, std = _of_bytes(pieces) if inputs.dtype == np.uint8 else _of_floats(pieces)
    return tuple(mean.tolist()), _spread(inputs, mean, std)


def _spread(inputs: Inputs, mean: Numbers, std: Numbers) -> tuple[float, ...]:
    """The standard deviations; 1 of what is constant but for the rounding of the inputs' type."""
    step = float(np.finfo(np.float64 if inputs.dtype == np.float64 else np.float32).eps)
    return tuple(np.where(std <= _ROUNDING * step * np.abs(mean), 1, std).tolist())


def _of_present(inputs: Inputs, middle: str) -> Constants:
    """Of the values that are there of series [n, channels, time] or vectors [n, features]."""
    found = []
    for place in range(inputs.shape[1]):
        values = inputs[:, place].astype(np.float64).ravel()
        there = values[~np.isnan(values)]
        centre = np.median if middle == "median" else np.mean
        found.append((centre(there), there.std()) if len(there) else (0.0, 1.0))
    centres, stds = np.array(found).T
    return tuple(centres.tolist()), _spread(inputs, centres, stds)


def kept_of(values: npt.NDArray[Any]) -> tuple[int, int]:
    """How many distinct values one channel's or feature's numbers have as float32, once they are
    centred and scaled in float64; and how many they have themselves. Both of its first values."""
    given = values.reshape(-1)[:_LOOKED_AT]
    given = given[given == given]  # those that are there
    exact = given.astype(np.float64)
    scaled = (exact - exact.mean()) / (exact.std() or 1)
    counted = given if given.dtype.kind in "iuf" else exact
    return len(np.unique(scaled.astype(np.float32))), len(np.unique(counted))


def coarse(columns: Iterable[tuple[str, npt.NDArray[Any]]]) -> list[str]:
    """A note that names the channels or features whose values float32 cannot tell apart: fewer than
    half of the distinct ones would be left. Nothing if there are none."""
    counts = [(name, *kept_of(values)) for name, values in columns]
    lost = [f"{name} (keeps {kept} of {had})" for name, kept, had in counts if 2 * kept < had]
    return [
        f"float32 holds fewer than half of the distinct values, even normalised, of: {told}:"
        " subtract an offset, rescale or split them"
        for told in ([some(lost)] if lost else [])
    ]


def _of_bytes(pieces: Iterable[Inputs]) -> tuple[Numbers, Numbers]:
    """Of pixels [n, height, width, channels], from how many there are of each value."""
    counts = sum(
        np.stack([np.bincount(piece[..., c].ravel(), minlength=256) for c in range(piece.shape[3])])
        for piece in pieces
    )
    shares, values = counts / np.sum(counts, 1, keepdims=True), np.arange(256) / 255
    mean = shares @ values
    return mean, np.sqrt((shares * (values - mean[:, None]) ** 2).sum(1))


def _of_floats(pieces: Iterable[Inputs]) -> tuple[Numbers, Numbers]:
    """Of series [n, channels, time] or vectors [n, features], piece by piece (Chan et al. 1979).

    The first number of each channel or feature is taken off before anything is summed: sums of
    large numbers would lose the digits in which they differ."""
    count, mean, squares, first = 0, np.zeros(1), np.zeros(1), np.zeros(1)
    for piece in pieces:
        values = piece.astype(np.float64).reshape(*piece.shape[:2], -1)
        first = values[0, :, 0] if count == 0 else first
        values = values - first[:, None]
        new, own = values.shape[0] * values.shape[2], values.mean((0, 2))
        squares = squares + ((values - own[:, None]) ** 2).sum((0, 2))
        squares = squares + (own - mean) ** 2 * (count * new / (count + new))
        mean = mean + (own - mean) * (new / (count + new))
        count += new
    return first + mean, np.sqrt(squares / count)
