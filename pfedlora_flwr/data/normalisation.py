"""Mean and standard deviation of each channel or feature, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.source import Inputs

Constants = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation: of a channel of images in [0, 1] or of series, or of a feature of vectors."""
_BYTES = 16_000_000
"""Of the inputs looked at together; in float64 eight times as many."""
_LEAST = 1e-7
"""Of a mean: what varies less is, in float32, constant."""


def of_all_pixels(images: npt.NDArray[np.uint8]) -> Constants:
    """Of all these images [n, height, width, channels]."""
    flat = images.reshape(-1, images.shape[-1])
    mean, second = np.zeros(flat.shape[1]), np.zeros(flat.shape[1])
    for part in np.array_split(flat, max(1, len(flat) // 1_000_000)):  # bounded memory, and the same sums everywhere
        mean += part.sum(0, dtype=np.float64)
        second += (part.astype(np.float64) ** 2).sum(0)
    mean /= 255 * len(flat)
    std = np.sqrt(np.maximum(second / (255**2 * len(flat)) - mean**2, 1e-12))
    return tuple(mean.tolist()), tuple(std.tolist())


def of_parts(inputs: Inputs, parts: Iterable[npt.NDArray[np.int64]]) -> Constants:
    """Of the inputs at these indices. What is constant has the standard deviation 1: normalised it is 0."""
    count, mean, squares = 0, np.zeros(1), np.zeros(1)
    for chosen in _pieces(inputs, np.sort(np.concatenate(list(parts)))):
        values = _by_channel(chosen.astype(np.float64))
        own, total = values.mean(0), count + len(values)
        squares = squares + ((values - own) ** 2).sum(0) + (own - mean) ** 2 * (count * len(values) / total)  # Chan et al. (1979)
        mean = mean + (own - mean) * (len(values) / total)
        count = total
    std = np.sqrt(squares / count)
    std[std <= _LEAST * np.abs(mean)] = 0
    scale = 255 if inputs.dtype == np.uint8 else 1
    return tuple((mean / scale).tolist()), tuple(np.where(std == 0, 1, std / scale).tolist())


def _pieces(inputs: Inputs, indices: npt.NDArray[np.int64]) -> Iterator[Inputs]:
    each = max(1, _BYTES // max(1, inputs[:1].nbytes))
    return (inputs[indices[start : start + each]] for start in range(0, len(indices), each))


def _by_channel(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """[…, channels or features]: a series' channels are not its last axis."""
    last = values.swapaxes(1, 2) if values.ndim == 3 else values
    return last.reshape(-1, last.shape[-1])
