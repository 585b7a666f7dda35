"""A name → images uint8 [n, 32, 32, 3], labels int64 [n], class names: read once, then from the cache."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from pfedlora_flwr.data import cache
from pfedlora_flwr.data.registry import find
from pfedlora_flwr.errors import UserError


@dataclass(frozen=True)
class Dataset:
    """All samples, official train and test parts merged in that order.

    mean, std: per channel, of the images scaled to [0, 1].
    """

    name: str
    images: npt.NDArray[np.uint8]  # [n, 32, 32, 3]
    labels: npt.NDArray[np.int64]  # [n]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def empty_classes(self) -> list[str]:
        """The names of the classes that no image has."""
        counts = np.bincount(np.asarray(self.labels), minlength=self.classes)
        return [name for name, count in zip(self.class_names, counts, strict=True) if not count]


@lru_cache(maxsize=4)
def load(name: str, data_path: str = "") -> Dataset:
    """The dataset `name`, from the cache or from the files under `data_path`.

    Two processes that build the cache at once wait for each other. Raises UserError when the files are missing or broken.
    """
    source = find(name)
    folder = cache.folder_of(source, name, data_path)
    if not (folder / cache.META).exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not (folder / cache.META).exists():
                    cache.write(folder, source.read(source.text(name), data_path))
        except OSError as error:
            raise UserError(f"dataset cache {folder.parent}: {error.strerror or error}; set PFEDLORA_CACHE to a writable folder") from None
    try:
        meta = json.loads((folder / cache.META).read_text())
        images, labels = (np.load(folder / f"{part}.npy", mmap_mode="r") for part in ("images", "labels"))
        return Dataset(name, images, labels, tuple(meta["class_names"]), tuple(meta["mean"]), tuple(meta["std"]))
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise UserError(f"dataset cache {folder} is damaged ({error}); remove it, and it is made anew") from None


def needs_download(name: str, data_path: str = "") -> bool:
    """Whether `load` would first fetch the files from outside."""
    source = find(name)
    if not source.files or data_path:
        return False
    here = (cache.folder_of(source, name, "") / cache.META, *(cache.downloads() / file for file in source.files))
    return not any(path.exists() for path in here)


def count_classes(name: str, data_path: str = "") -> int:
    """The dataset's number of classes, without its files where the name tells: a deployed server has none."""
    return find(name).classes or load(name, data_path).classes


def count_samples(name: str, data_path: str = "") -> int:
    """The dataset's number of samples, without its files where the name tells."""
    source = find(name)
    known = source.samples(source.text(name)) if callable(source.samples) else source.samples
    return known or len(load(name, data_path).labels)
