"""The masks of secure aggregation, from a real stream cipher: ChaCha20, keyed by HKDF with all of a
seed.

Flower's own generator folds every seed to 32 bits, of which a pair's base64 text leaves 28, and
feeds a Mersenne Twister: such masks are found by trying (flwr issue #7522, open). `install` puts
this one in its place. A test tells when upstream folds no more; then this file can go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pfedlora_flwr.federation.flower_compat import draw_masks_by


def masks(
    seed: bytes, num_range: int, dimensions_list: Sequence[tuple[int, ...]]
) -> list[npt.NDArray[Any]]:
    """Arrays of these shapes, their elements uniform in [0, num_range), a power of two up to 2^32;
    as int64."""
    assert num_range in {2**bits for bits in range(33)}
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"pfedlora secagg mask").derive(seed)
    counts = [math.prod(shape) for shape in dimensions_list]
    stream = (
        Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
        .encryptor()
        .update(bytes(4 * sum(counts)))
    )
    words = np.frombuffer(stream, "<u4").astype(np.int64) & (num_range - 1)
    parts = np.split(words, np.cumsum(counts)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, dimensions_list, strict=True)]


def install() -> None:
    """Makes Flower's client and server draw these masks. Raises RuntimeError if a version of
    Flower draws them by another name."""
    draw_masks_by(masks)
