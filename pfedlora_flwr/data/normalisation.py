"""Mean and standard deviation of each channel or feature, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.source import Inputs

Constants = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation: of a channel of images in [0, 1] or of series, or of a feature of vectors."""
Indices = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]
_BYTES = 4_000_000
"""Of the inputs looked at together; in float64 eight times as many."""
_LEAST = 1e-7
"""Of a mean: what varies less is, in float32, constant."""


def of_all_pixels(images: npt.NDArray[np.uint8]) -> Constants:
    """Of all these images [n, height, width, channels]."""
    flat = images.reshape(-1, images.shape[-1])
    mean, second = np.zeros(flat.shape[1]), np.zeros(flat.shape[1])
    for part in np.array_split(
        flat, max(1, len(flat) // 1_000_000)
    ):  # bounded memory, and the same sums everywhere
        mean += part.sum(0, dtype=np.float64)
        second += (part.astype(np.float64) ** 2).sum(0)
    mean /= 255 * len(flat)
    std = np.sqrt(np.maximum(second / (255**2 * len(flat)) - mean**2, 1e-12))
    return tuple(mean.tolist()), tuple(std.tolist())


def of_parts(inputs: Inputs, parts: Iterable[Indices]) -> Constants:
    """Of the inputs at these indices. What is constant has the standard deviation 1: normalised it is 0."""
    each = max(1, _BYTES // inputs[:1].nbytes)
    indices = np.sort(np.concatenate(list(parts)))
    pieces = (inputs[indices[start : start + each]] for start in range(0, len(indices), each))
    mean, std = _of_bytes(pieces) if inputs.dtype == np.uint8 else _of_floats(pieces)
    std = np.where(std <= _LEAST * np.abs(mean), 1, std)
    return tuple(mean.tolist()), tuple(std.tolist())


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
    """Of series [n, channels, time] or vectors [n, features], piece by piece (Chan et al. 1979)."""
    count, mean, squares = 0, np.zeros(1), np.zeros(1)
    for piece in pieces:
        values = piece.astype(np.float64).reshape(*piece.shape[:2], -1)
        new, own = values.shape[0] * values.shape[2], values.mean((0, 2))
        squares = (
            squares
            + ((values - own[:, None]) ** 2).sum((0, 2))
            + (own - mean) ** 2 * (count * new / (count + new))
        )
        mean = mean + (own - mean) * (new / (count + new))
        count += new
    return mean, np.sqrt(squares / count)
