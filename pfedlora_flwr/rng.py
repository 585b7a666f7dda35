"""Random generators: each draw of a run comes from one seeded by (seed, purpose, client, round), so
results depend on nothing else."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

SERVER = -1
"""The `client` of a draw that belongs to no client."""


def derive(seed: int, purpose: str, client: int = SERVER, round: int = 0) -> int:
    """A 63-bit seed, well mixed: SHA-256 of the four."""
    text = f"{seed}/{purpose}/{client}/{round}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def torch_generator(
    seed: int, purpose: str, client: int = SERVER, round: int = 0
) -> torch.Generator:
    """A CPU generator: the same draws wherever the training runs."""
    return torch.Generator().manual_seed(derive(seed, purpose, client, round))


def numpy_generator(
    seed: int, purpose: str, client: int = SERVER, round: int = 0
) -> np.random.Generator:
    """A NumPy generator (PCG64)."""
    return np.random.Generator(np.random.PCG64(derive(seed, purpose, client, round)))


def sample_clients(seed: int, round: int, clients: Sequence[int], sampled: int) -> list[int]:
    """The clients of a round: `sampled` of `clients`, which ascend, without replacement, in
    ascending order."""
    drawn = numpy_generator(seed, "sample", round=round).choice(
        len(clients), size=sampled, replace=False, shuffle=False
    )
    return sorted(clients[k] for k in drawn.tolist())


def generators() -> bytes:
    """The state of the global generators, torch's, NumPy's and Python's."""
    return pickle.dumps((torch.get_rng_state().numpy(), np.random.get_state(), random.getstate()))


@contextmanager
def generators_kept() -> Iterator[None]:
    """Afterwards the global generators, torch's, NumPy's and Python's, are as before."""
    saved = torch.get_rng_state(), np.random.get_state(), random.getstate()
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.set_rng_state(saved[0])
        np.random.set_state(saved[1])
        random.setstate(saved[2])
        if on_gpus:
            torch.cuda.set_rng_state_all(on_gpus)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the global generators inside a `with`: torch's, from which modules initialise
    themselves, NumPy's and Python's. They are restored after: what draws from them later, as a
    user's noise, is not known from the seed."""
    with generators_kept():
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        yield
