"""What tokenisers make of a dataset's texts: once for each of them, kept in the cache."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from pfedlora_flwr.data.datasets import Dataset
from pfedlora_flwr.files import cache_root, keep, kept_in, made
from pfedlora_flwr.models import text

_VERSION = 1  # of the files' layout
_AT_ONCE = 4096


def tokens(dataset: Dataset, model: str) -> npt.NDArray[np.int64]:
    """All texts as the model of this name takes them, [n, tokens], from the cache or made and kept
    there. Raises UserError where the model has no tokeniser, or the cache cannot be written."""
    told = f"{_VERSION}/{text.tokeniser_sha256(model)}/{dataset.shape}/".encode()
    name = hashlib.sha256(told + np.asarray(dataset.hashes).tobytes()).hexdigest()
    file = cache_root() / "tokens" / f"{name}.npy"
    with kept_in(file):
        if not file.exists():
            made(file.parent)
            with FileLock(f"{file}.lock"):
                if not file.exists():
                    starts = range(0, len(dataset.inputs), _AT_ONCE)
                    parts = (dataset.inputs[start : start + _AT_ONCE] for start in starts)
                    keep(file, np.concatenate([text.tokenised(model, part) for part in parts]))
        return _mapped(file.name)


@lru_cache(maxsize=8)
def _mapped(name: str) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = np.load(cache_root() / "tokens" / name, mmap_mode="r")
    return found
