"""Images of one's own: a folder for each class, an .npz file of arrays, and a single image file of any size."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.source import SIZE, Arrays
from pfedlora_flwr.errors import UserError

_SUFFIXES = (".png", ".jpg", ".jpeg")
READABLE = (*_SUFFIXES, ".webp", ".bmp")
"""The suffixes of what `read_image` reads."""
_MOST_CLASSES = 100_000


def folder(text: str, _data_path: str) -> Arrays:
    """`folder:PATH`: one folder of PNG or JPEG images for each class."""
    root = Path(text).expanduser()
    if not root.is_dir():
        raise UserError(f"dataset folder {root} does not exist; expected a folder of one folder of images for each class")
    class_names = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    by_class = [sorted(f for f in (root / c).iterdir() if f.suffix.lower() in _SUFFIXES) for c in class_names]
    files = [(file, label) for label, inside in enumerate(by_class) for file in inside]
    if sum(map(bool, by_class)) < 2:
        raise UserError(f"dataset folder {root}: expected at least two class folders with PNG or JPEG images")
    images = np.empty((len(files), SIZE, SIZE, 3), np.uint8)
    for i, (file, _) in enumerate(files):
        images[i] = read_image(file)
    return images, np.array([label for _, label in files], np.int64), class_names


def npz(text: str, _data_path: str) -> Arrays:
    """`npz:FILE`: `images` uint8 [n, 32, 32, 3], `labels` [n] and perhaps `class_names`."""
    path = Path(text).expanduser()
    try:
        with np.load(path, allow_pickle=False) as loaded:
            images, labels = loaded["images"], loaded["labels"]
            names = [str(n) for n in loaded["class_names"]] if "class_names" in loaded else None
    except FileNotFoundError:
        raise UserError(f"dataset file {path} does not exist") from None
    except (KeyError, ValueError, OSError, EOFError, TypeError, AttributeError, zipfile.BadZipFile):
        raise UserError(f"{path}: expected an npz with `images` uint8 [n, 32, 32, 3] and `labels` [n]") from None
    right = images.dtype == np.uint8 and images.shape[1:] == (SIZE, SIZE, 3)
    if not right or labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        found = f"images is {images.dtype} {list(images.shape)}, labels {labels.dtype} {list(labels.shape)}"
        raise UserError(f"{path}: {found}; expected uint8 [n, 32, 32, 3] and integers [n]")
    if not len(labels):
        raise UserError(f"{path}: it has no images")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= _MOST_CLASSES:
        raise UserError(f"{path}: labels go from {low} to {high}; allowed: 0 to {_MOST_CLASSES - 1}")
    if names is not None and high >= len(names):
        raise UserError(f"{path}: labels go up to {high}, and class_names names 0 to {len(names) - 1}")
    if names is not None and len(set(names)) < len(names):
        raise UserError(f"{path}: class_names has {next(n for n in names if names.count(n) > 1)!r} twice")
    if low == high:
        raise UserError(f"{path}: all labels are {low}; expected at least two classes")
    return images, labels.astype(np.int64), names or [str(i) for i in range(int(labels.max()) + 1)]


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
