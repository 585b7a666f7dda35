"""A name → images uint8 [n, 32, 32, 3], labels int64 [n], class names; decoded once into a memory-mapped cache that all processes share."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from pfedlora_flwr.keys import UserError

SIZE = 32
TORCHVISION_REMEDY = "install both from one index: pip install --force-reinstall torch torchvision"
"""What to do where torchvision cannot be imported: most often it was built for another PyTorch than the one beside it."""
_VERSION = 2  # of the cache's layout
_CIFAR_FILES = {
    "cifar10": (
        "cifar-10-batches-py",
        [f"data_batch_{i}" for i in range(1, 6)],
        ["test_batch"],
        b"labels",
        "batches.meta",
        b"label_names",
    ),
    "cifar100": ("cifar-100-python", ["train"], ["test"], b"fine_labels", "meta", b"fine_label_names"),
}
_CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


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


def cache_root() -> Path:
    """Where decoded datasets live: $PFEDLORA_CACHE, or ~/.cache/pfedlora."""
    return Path(os.environ.get("PFEDLORA_CACHE") or Path.home() / ".cache" / "pfedlora")


@lru_cache(maxsize=4)
def load(name: str, data_path: str = "") -> Dataset:
    """The dataset `name`, from the cache or from the files under `data_path`.

    Two processes that build the cache at once wait for each other. Raises UserError when the files are missing or broken.
    """
    folder = cache_root() / _cache_key(name, data_path)
    if not (folder / "meta.json").exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not (folder / "meta.json").exists():
                    _build(name, data_path, folder)
        except OSError as error:
            raise UserError(f"dataset cache {folder.parent}: {error.strerror or error}; set PFEDLORA_CACHE to a writable folder") from None
    meta = json.loads((folder / "meta.json").read_text())
    images, labels = (np.load(folder / f"{part}.npy", mmap_mode="r") for part in ("images", "labels"))
    return Dataset(name, images, labels, tuple(meta["class_names"]), tuple(meta["mean"]), tuple(meta["std"]))


def needs_download(name: str, data_path: str = "") -> bool:
    """Whether `load` would first fetch the files from outside."""
    if name not in _CIFAR_FILES or data_path:
        return False
    downloads = cache_root() / "downloads"
    here = (cache_root() / _cache_key(name, "") / "meta.json", downloads / _CIFAR_FILES[name][0], downloads / "train.parquet")
    return not any(path.exists() for path in here)


def count_classes(name: str, data_path: str = "") -> int:
    """The dataset's number of classes, without its files where the name tells: a deployed server has none."""
    known = {"digits": 10, "cifar10": 10, "cifar100": 100, "synthetic": 10}
    return known.get(name.partition(":")[0]) or load(name, data_path).classes


def _build(name: str, data_path: str, folder: Path) -> None:
    images, labels, class_names = _read(name, data_path)
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
        (building / "meta.json").write_text(json.dumps(meta))
        shutil.rmtree(folder, ignore_errors=True)  # the remains of a cache without its meta.json
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _read(name: str, data_path: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
    kind, _, rest = name.partition(":")
    if kind == "digits":
        return _digits()
    if kind == "synthetic":
        return _synthetic(rest)
    if kind == "folder":
        return _folder(Path(rest).expanduser())
    if kind == "npz":
        return _npz(Path(rest).expanduser())
    return _cifar(name, data_path)


def _digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
    from sklearn.datasets import load_digits

    loaded = load_digits()
    grey = np.round(loaded.images * (255 / 16)).astype(np.uint8)  # 8×8, 17 levels
    images = grey.repeat(4, axis=1).repeat(4, axis=2)[..., None].repeat(3, axis=3)
    return np.ascontiguousarray(images), loaded.target.astype(np.int64), [str(i) for i in range(10)]


def _synthetic(text: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
    if not text.isdigit() or int(text) < 10:
        raise UserError(f"dataset is 'synthetic:{text}'; allowed: synthetic:COUNT with at least 10 images")
    rng = np.random.Generator(np.random.PCG64(0))
    labels = np.arange(int(text), dtype=np.int64) % 10
    prototypes = rng.integers(0, 256, (10, SIZE, SIZE, 3), dtype=np.uint8)
    images = np.empty((len(labels), SIZE, SIZE, 3), np.uint8)
    for start in range(0, len(labels), 10_000):
        part = slice(start, start + 10_000)
        noise = rng.integers(0, 256, images[part].shape, dtype=np.uint8)
        images[part] = prototypes[labels[part]] // 2 + noise // 2
    return images, labels, [str(i) for i in range(10)]


def _folder(root: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
    if not root.is_dir():
        raise UserError(f"dataset folder {root} does not exist; expected a folder of one folder of images for each class")
    class_names = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    files = [
        (f, i) for i, c in enumerate(class_names) for f in sorted((root / c).iterdir()) if f.suffix.lower() in (".png", ".jpg", ".jpeg")
    ]
    if len(class_names) < 2 or not files:
        raise UserError(f"dataset folder {root}: expected at least two class folders with PNG or JPEG images")
    images = np.empty((len(files), SIZE, SIZE, 3), np.uint8)
    for i, (file, _) in enumerate(files):
        images[i] = read_image(file)
    return images, np.array([label for _, label in files], np.int64), class_names


def read_image(path: Path) -> npt.NDArray[np.uint8]:
    """A PNG or JPEG file (WebP or BMP, too) of any size and mode as uint8 [32, 32, 3]. Raises UserError for a file that is none."""
    from PIL import Image

    try:
        with Image.open(path, formats=("PNG", "JPEG", "WEBP", "BMP")) as image:
            deep = image.mode.startswith("I")  # 16 bits a pixel, which `convert` would cut off at 255
            eight = Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8)) if deep else image
            return np.asarray(eight.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR), np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # all that Pillow raises for a damaged file
        raise UserError(f"{path}: " + ("no readable PNG or JPEG image" if path.exists() else "no such file")) from None


def _npz(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
    try:
        with np.load(path, allow_pickle=False) as loaded:
            images, labels = loaded["images"], loaded["labels"]
            names = [str(n) for n in loaded["class_names"]] if "class_names" in loaded else None
    except FileNotFoundError:
        raise UserError(f"dataset file {path} does not exist") from None
    except (KeyError, ValueError, OSError, EOFError, TypeError, AttributeError, zipfile.BadZipFile):
        raise UserError(f"{path}: expected an npz with `images` uint8 [n, 32, 32, 3] and `labels` [n]") from None
    if images.dtype != np.uint8 or images.shape[1:] != (SIZE, SIZE, 3) or labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise UserError(
            f"{path}: images is {images.dtype} {list(images.shape)}, labels {labels.dtype}; expected uint8 [n, 32, 32, 3] and integers [n]"
        )
    if not len(labels) or labels.min() < 0 or (names is not None and labels.max() >= len(names)):
        raise UserError(f"{path}: labels must count from 0 and have a name each")
    return images, labels.astype(np.int64), names or [str(i) for i in range(int(labels.max()) + 1)]


def _cifar(name: str, data_path: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
    root = Path(data_path).expanduser() if data_path else cache_root() / "downloads"
    if data_path and not root.is_dir():
        raise UserError(
            f"data-path {data_path!r} does not exist; give the folder that holds {name}'s files, or leave it empty to download them"
        )
    if (root / "train.parquet").exists() or (root / "test.parquet").exists():
        return _cifar_parquet(name, root)
    inner = _CIFAR_FILES[name][0]
    if not data_path and not (root / inner).is_dir():
        _download(name, root)
    for folder in (root / inner, root):
        if (folder / _CIFAR_FILES[name][2][0]).exists():
            return _cifar_batches(name, folder)
    raise UserError(f"data-path {data_path!r} holds neither train.parquet and test.parquet nor {inner}/")


def _cifar_parquet(name: str, root: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    column = "label" if name == "cifar10" else "fine_label"
    images, labels, class_names = [], [], None
    for file in (root / "train.parquet", root / "test.parquet"):
        try:
            table = pq.read_table(file, columns=["img", column])
            for row in _progress(table["img"].to_pylist(), f"decoding {file.name}"):
                pixels = np.asarray(Image.open(io.BytesIO(row["bytes"])).convert("RGB"), np.uint8)
                if pixels.shape != (SIZE, SIZE, 3):
                    raise ValueError(f"an image of {pixels.shape}")
                images.append(pixels)
            labels.append(np.asarray(table[column].to_numpy(), np.int64))
            class_names = class_names or _parquet_names(table.schema.metadata, column)
        except FileNotFoundError:
            raise UserError(f"{file} is missing: both train.parquet and test.parquet are needed") from None
        except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
            detail = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            raise UserError(f"{file} is corrupt or no {name} file ({detail}); fetch it again") from None
    return np.stack(images), _checked(np.concatenate(labels), name, root), class_names or _names(name)


def _parquet_names(metadata: dict[bytes, bytes] | None, column: str) -> list[str] | None:
    """The class names that the public hub's copies carry in their schema."""
    try:
        return json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
    except (KeyError, ValueError, TypeError):
        return None


def _cifar_batches(name: str, folder: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
    _, train, test, label_key, meta_file, names_key = _CIFAR_FILES[name]
    images, labels = [], []
    for file in train + test:
        batch = _unpickle(folder / file)
        try:
            images.append(np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, SIZE, SIZE).transpose(0, 2, 3, 1))
            labels.append(np.asarray(batch[label_key], np.int64))
        except (KeyError, ValueError, TypeError):
            raise UserError(f"{folder / file} is corrupt or no {name} batch; fetch it again") from None
    names = [n.decode() for n in _unpickle(folder / meta_file)[names_key]] if (folder / meta_file).exists() else _names(name)
    return np.concatenate(images), _checked(np.concatenate(labels), name, folder), names


class _Plain(pickle.Unpickler):
    """Reads the official batches, which are pickles of plain data and NumPy arrays, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("numpy") and name in ("_reconstruct", "ndarray", "dtype", "scalar"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


def _unpickle(file: Path) -> dict[bytes, Any]:
    try:
        with file.open("rb") as stream:
            return _Plain(stream, encoding="bytes").load()
    except FileNotFoundError:
        raise UserError(f"{file} is missing") from None
    except Exception as error:  # a broken pickle can raise anything
        raise UserError(f"{file} is corrupt ({type(error).__name__}); fetch it again") from None


def _checked(labels: npt.NDArray[np.int64], name: str, where: Path) -> npt.NDArray[np.int64]:
    classes = len(_names(name))
    if not len(labels) or labels.min() < 0 or labels.max() >= classes:
        raise UserError(f"{where}: the labels are not {name}'s (0 to {classes - 1})")
    return labels


def _names(name: str) -> list[str]:
    return _CIFAR10_NAMES if name == "cifar10" else [f"class {i}" for i in range(100)]


def _download(name: str, root: Path) -> None:
    try:
        from torchvision.datasets import CIFAR10, CIFAR100
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        advice = f"{TORCHVISION_REMEDY}; or give its files by data-path"
        raise UserError(f"{name} must be downloaded and torchvision cannot be imported ({reason}); {advice}") from None
    try:
        root.mkdir(parents=True, exist_ok=True)
        (CIFAR10 if name == "cifar10" else CIFAR100)(str(root), download=True)  # shows a progress bar
    except (OSError, RuntimeError) as error:
        raise UserError(f"{name} cannot be downloaded ({error}); fetch its files yourself and give them by data-path") from None


def _progress(rows: list[Any], title: str) -> Iterable[Any]:
    from rich.progress import track

    return track(rows, description=title, transient=True, disable=len(rows) < 1000)


def _cache_key(name: str, data_path: str) -> str:
    """The cache folder's name: changes when the source files do."""
    kind, _, rest = name.partition(":")
    text = f"{_VERSION}/{name}"
    if kind not in ("digits", "synthetic"):
        if not rest and not data_path:
            return f"{kind}-downloaded-{_VERSION}"
        root = Path(rest or data_path).expanduser().absolute()
        files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
        text += f"/{root}" + "".join(f"/{f}:{s.st_size}:{s.st_mtime_ns}" for f in files if f.exists() for s in [f.stat()])
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
