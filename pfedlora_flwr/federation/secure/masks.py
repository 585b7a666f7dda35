"""The masks of secure aggregation, from a real stream cipher: ChaCha20, keyed by HKDF with all of a
seed.

Flower's own generator folds every seed to 32 bits, of which a pair's base64 text leaves 28, and
feeds a Mersenne Twister: such masks are found by trying (flwr issue #7522, open). `install` puts
this one in its place. A test tells when upstream folds no more; then this file can go."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.flower_compat import FitIns, draw_masks_by

_BY_CLIENT = ("client", "version", "origin", "keep")
"""Fields of an instruction that differ between the clients of an honest round: its number, and
which of its own models it takes up and keeps."""
_BOUND_TO: ContextVar[bytes] = ContextVar("what masks are bound to")


def masks(
    seed: bytes, num_range: int, dimensions_list: Sequence[tuple[int, ...]]
) -> list[npt.NDArray[Any]]:
    """Arrays of these shapes, their elements uniform in [0, num_range), a power of two up to 2^32;
    as int64. They differ with what they are bound to; without that they are not drawn."""
    assert num_range in {2**bits for bits in range(33)}
    salt, info = _BOUND_TO.get(), b"pfedlora secagg mask"
    key = HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(seed)
    counts = [math.prod(shape) for shape in dimensions_list]
    stream = (
        Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
        .encryptor()
        .update(bytes(4 * sum(counts)))
    )
    words = np.frombuffer(stream, "<u4").astype(np.int64) & (num_range - 1)
    parts = np.split(words, np.cumsum(counts)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, dimensions_list, strict=True)]


def received(e: Experiment, ins: FitIns, members: Iterable[int]) -> bytes:
    """SHA-256 of what a site was sent for a round and its update depends on: the run's keys, the
    instruction, run and round in it, and every tensor. Only what differs by client is not in it.

    members: the nodes whose masks are in the round, where each adds those of all others."""
    said = {name: value for name, value in ins.config.items() if name not in _BY_CLIENT}
    text = json.dumps([e.fingerprint(), said, sorted(members)], sort_keys=True)
    parts = [text.encode(), *ins.parameters.tensors]
    return sha256(b"".join(sha256(part).digest() for part in parts)).digest()


@contextmanager
def bound_to(what: bytes) -> Iterator[None]:
    """Within it masks are those of sites that were sent this. A pair's cancel if both were, and the
    server takes off those of its own download: with any other the sum is noise."""
    before = _BOUND_TO.set(what)
    try:
        yield
    finally:
        _BOUND_TO.reset(before)


def install() -> None:
    """Makes Flower's client and server draw these masks. Raises RuntimeError if a version of
    Flower draws them by another name."""
    draw_masks_by(masks)
