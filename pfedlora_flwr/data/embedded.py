"""Datasets without files: scikit-learn's digits, and images made from a fixed seed."""

from __future__ import annotations

import numpy as np

from pfedlora_flwr.data.source import SIZE, Arrays, Reading
from pfedlora_flwr.errors import UserError

_MOST = 5_000_000
"""Images of 3 KiB each."""


def digits(_text: str, _how: Reading) -> Arrays:
    """Scikit-learn's 8 × 8 digits, each pixel four by four times."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    grey = np.round(loaded.images * (255 / 16)).astype(np.uint8)  # 8×8, 17 levels
    images = grey.repeat(4, axis=1).repeat(4, axis=2)[..., None].repeat(3, axis=3)
    return Arrays(
        np.ascontiguousarray(images), loaded.target.astype(np.int64), [str(i) for i in range(10)]
    )


def synthetic(text: str, _how: Reading) -> Arrays:
    """`synthetic:COUNT`: ten classes, a prototype of noise each, and noise of its own in every
    image."""
    rng = np.random.Generator(np.random.PCG64(0))
    labels = np.arange(count(text), dtype=np.int64) % 10
    prototypes = rng.integers(0, 256, (10, SIZE, SIZE, 3), dtype=np.uint8)
    images = np.empty((len(labels), SIZE, SIZE, 3), np.uint8)
    for start in range(0, len(labels), 10_000):
        part = slice(start, start + 10_000)
        noise = rng.integers(0, 256, images[part].shape, dtype=np.uint8)
        images[part] = prototypes[labels[part]] // 2 + noise // 2
    return Arrays(images, labels, [str(i) for i in range(10)])


def count(text: str) -> int:
    """COUNT in `synthetic:COUNT`. Raises UserError."""
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or not 10 <= int(text) <= _MOST:
        raise UserError(
            f"dataset is 'synthetic:{text[:40]}'; allowed: synthetic:COUNT with 10 to {_MOST}"
            " images"
        )
    return int(text)
