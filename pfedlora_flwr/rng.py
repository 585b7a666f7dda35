"""Random generators: each draw of a run comes from one seeded by (seed, purpose, client, round), so
results depend on nothing else."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
    saved = _of_cpu()
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        _put_on_cpu(*saved)
        if on_gpus:
            torch.cuda.set_rng_state_all(on_gpus)


Held = tuple[tuple[Any, ...], list[torch.Generator]]
"""Where the global generators are: the state of the CPU's, and the GPUs' own, which go on."""


def held() -> Held:
    """The global generators, for `hold`."""
    gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return _of_cpu(), [gpu.graphsafe_get_state() for gpu in gpus]


def hold(those: Held) -> None:
    """Makes them the global ones again. A graph that was captured goes on drawing from the same."""
    _put_on_cpu(*those[0])
    for gpu, own in zip(torch.cuda.default_generators, those[1], strict=False):
        gpu.graphsafe_set_state(own)


def hold_new() -> None:
    """Makes others the global ones, which the system seeds: what draws from them unseeded, as a
    user's noise, draws nothing that others draw."""
    for gpu in torch.cuda.default_generators if torch.cuda.is_initialized() else ():
        gpu.graphsafe_set_state(gpu.clone_state())
    torch.seed()
    np.random.seed()
    random.seed()


def _of_cpu() -> tuple[Any, ...]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _put_on_cpu(torchs: Any, numpys: Any, pythons: Any) -> None:
    torch.set_rng_state(torchs)
    np.random.set_state(numpys)
    random.setstate(pythons)


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
