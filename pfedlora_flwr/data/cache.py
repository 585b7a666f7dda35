"""Decoded datasets on disk: a folder each of memory-mapped arrays, which all processes share; and what was downloaded."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from pfedlora_flwr.data.source import Arrays, Source

META = "meta.json"
"""Written last: a folder without it is none of a dataset."""
_VERSION = 2  # of the folders' layout


def cache_root() -> Path:
    """Where decoded datasets live: $PFEDLORA_CACHE, or ~/.cache/pfedlora."""
    return Path(os.environ.get("PFEDLORA_CACHE") or Path.home() / ".cache" / "pfedlora")


def downloads() -> Path:
    """Where datasets' files are downloaded to."""
    return cache_root() / "downloads"


def folder_of(source: Source, name: str, data_path: str) -> Path:
    """Where the dataset `name` of `source` is kept decoded: another folder when its files change."""
    kind = source.name.rstrip(":")
    text = f"{_VERSION}/{name}"
    if source.files and not data_path:
        return cache_root() / f"{kind}-downloaded-{_VERSION}"
    if source.files or source.path:
        root = Path(source.text(name) if source.path else data_path).expanduser().absolute()
        files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
        text += f"/{root}" + "".join(f"/{f}:{s.st_size}:{s.st_mtime_ns}" for f in files if f.exists() for s in [f.stat()])
    return cache_root() / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def write(folder: Path, arrays: Arrays) -> None:
    """Keeps the arrays in `folder`, with each channel's mean and standard deviation; all or nothing."""
    images, labels, class_names = arrays
    flat = images.reshape(-1, 3)
    mean, second = np.zeros(3), np.zeros(3)
    for part in np.array_split(flat, max(1, len(flat) // 1_000_000)):  # bounded memory, and the same sums everywhere
        mean += part.sum(0, dtype=np.float64)
        second += (part.astype(np.float64) ** 2).sum(0)
    mean /= 255 * len(flat)
    std = np.sqrt(np.maximum(second / (255**2 * len(flat)) - mean**2, 1e-12))
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        np.save(building / "images.npy", images)
        np.save(building / "labels.npy", labels)
        meta = {"class_names": class_names, "mean": mean.tolist(), "std": std.tolist()}
        (building / META).write_text(json.dumps(meta))
        shutil.rmtree(folder, ignore_errors=True)  # the remains of a cache without its meta.json
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
