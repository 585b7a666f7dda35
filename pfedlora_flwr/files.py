"""Files that are whole or absent: written aside, then renamed into place."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replaces `path` by `data`: a crash at any moment leaves the old file or the new one.

    durable: also when the power fails.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as stream:
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        aside.replace(path)
        if durable:
            _sync_folder(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Brings a renamed file's name to the disk, where the system lets a folder be opened."""
    with contextlib.suppress(PermissionError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the mapping's order."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        array = tensor.numpy()
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
