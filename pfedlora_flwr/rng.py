"""Random generators: each draw of a run comes from one seeded by (seed, purpose, client, round), so
results depend on nothing else."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

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


class seeded:  # noqa: N801 - reads as a statement: `with seeded(seed):`
    """Seeds the global generators inside a `with`: torch's, from which modules initialise
    themselves, NumPy's and Python's. They are restored after: what draws from them later, as a
    user's noise, is not known from the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __enter__(self) -> None:
        self.saved = torch.get_rng_state(), np.random.get_state(), random.getstate()
        self.on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        torch.default_generator.manual_seed(self.seed)
        if self.on_gpus:
            torch.cuda.manual_seed_all(self.seed)
        np.random.seed(self.seed % 2**32)
        random.seed(self.seed)

    def __exit__(self, *error: object) -> None:
        torch.set_rng_state(self.saved[0])
        np.random.set_state(self.saved[1])
        random.setstate(self.saved[2])
        if self.on_gpus:
            torch.cuda.set_rng_state_all(self.on_gpus)
