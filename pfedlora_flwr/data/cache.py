"""Decoded datasets on disk: a folder of memory-mapped arrays each, shared by all processes; and
downloads."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.normalisation import of_all_pixels
from pfedlora_flwr.data.source import SIZE, Arrays, Inputs, Reading, Source
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import cache_root, check_regular, made

META = "meta.json"
"""Written last: a folder without it is none of a dataset."""
DIGESTS = "digests"
_VERSION = 10  # of the folders' layout


def downloads() -> Path:
    """Where datasets' files are downloaded to."""
    return cache_root() / "downloads"


def scratch(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Zeros in a file that nobody sees, for images that need not fit in memory."""
    with tempfile.TemporaryFile(dir=made(cache_root())) as file:
        if np.prod(shape):
            return np.memmap(file, np.uint8, "w+", shape=shape)
        return np.zeros(shape, np.uint8)


def folder_of(source: Source, name: str, how: Reading) -> Path:
    """Where the dataset `name` of `source` is kept decoded: another folder when its files change,
    or it is read otherwise. Raises UserError where these cannot be looked at."""
    kind, rest = source.name.rstrip(":"), replace(how, data_path="")
    text = f"{_VERSION}/{name}" + ("" if rest == Reading() else f"/{rest}")
    if source.files and not how.data_path and rest == Reading():
        return cache_root() / f"{kind}-downloaded-{_VERSION}"
    if source.is_path(source.text(name)) or (source.files and how.data_path):
        root = Path(how.data_path if source.files else source.text(name)).expanduser().absolute()
        try:
            if not (inside := root.is_dir()):
                check_regular(root)
            text += f"/{root}" + "".join(map(_state, _below(root) if inside else [root]))
        except OSError as error:  # no access, or too long a name
            raise UserError(f"{root}: {error.strerror}") from None
    # a path may hold any bytes
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
    return cache_root() / f"{kind}-{digest[:16]}"


def _below(root: Path) -> list[Path]:
    """All in a folder and below it, also in a class's folder that is a link, sorted."""
    links = [path for path in root.iterdir() if path.is_symlink() and path.is_dir()]
    return sorted(path for folder in (root, *links) for path in folder.rglob("*"))


def _state(path: Path) -> str:
    """What changes with a file; of a folder, which may be a class's, its name alone."""
    if path.is_dir():
        return f"/{path}"
    about = path.stat() if path.exists() else None
    return f"/{path}:{about.st_size}:{about.st_mtime_ns}" if about else ""


def digests(inputs: Inputs, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """A hash of each sample with its label [n]: 64 bits, so that no two of a million different ones
    are likely to be alike."""
    found = np.empty(len(inputs), np.uint64)
    for i, (one, label) in enumerate(zip(inputs, labels, strict=True)):
        text = np.ascontiguousarray(one).tobytes() + int(label).to_bytes(8, "little")
        found[i] = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return found


def write(folder: Path, source: Source, arrays: Arrays) -> None:
    """Keeps the arrays in `folder`; all or nothing."""
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        for part in ("inputs", "labels", "owners", "split"):
            if (array := getattr(arrays, part)) is not None:
                np.save(building / f"{part}.npy", array, allow_pickle=False)
        inputs = arrays.inputs
        np.save(building / f"{DIGESTS}.npy", digests(inputs, arrays.labels), allow_pickle=False)
        as_one = source.whole and inputs.shape[1:] == (SIZE, SIZE, 3)
        mean, std = of_all_pixels(inputs.astype(np.uint8, copy=False)) if as_one else (None, None)
        meta: dict[str, Any] = {"class_names": arrays.class_names, "mean": mean, "std": std}
        meta |= {"resized": arrays.resized, "feature_names": arrays.feature_names}
        meta |= {"notes": arrays.notes, "original": arrays.original}
        (building / META).write_text(json.dumps(meta))
        shutil.rmtree(folder, ignore_errors=True)  # the remains of a cache without its meta.json
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
