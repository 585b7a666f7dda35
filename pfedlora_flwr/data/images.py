"""Images: a folder for each class, an image file of any size and mode, and many of them as one array."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.cache import scratch
from pfedlora_flwr.data.source import Arrays, Reading
from pfedlora_flwr.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)

_SUFFIXES = (".png", ".jpg", ".jpeg")
READABLE = (*_SUFFIXES, ".webp", ".bmp")
"""The suffixes of what `read_image` reads."""
_FEWER_BITS = 2**14
"""Images of 16 bits that stay below it have but a quarter of the greys; those of 12, as X-rays are, 17 of 256."""
File = tuple[str, Path | bytes]
"""An image file: what messages call it, and where or what it is."""


def folder(text: str, how: Reading) -> Arrays:
    """`folder:PATH`: one folder of PNG or JPEG images for each class."""
    root = Path(text).expanduser()
    if not root.is_dir():
        raise UserError(
            f"dataset folder {root} does not exist; expected a folder of one folder of images for each class"
        )
    class_names = sorted(
        p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")
    )
    by_class = [
        sorted(f for f in (root / c).iterdir() if f.suffix.lower() in _SUFFIXES)
        for c in class_names
    ]
    files = [(file, label) for label, inside in enumerate(by_class) for file in inside]
    if not any(by_class) or (len(class_names) < 2 and not how.one_class):
        raise UserError(
            f"dataset folder {root}: expected at least two class folders with PNG or JPEG images"
        )
    images, resized = decoded(
        f"dataset folder {root}", len(files), lambda: ((str(file), file) for file, _ in files), how
    )
    return Arrays(
        images, np.array([label for _, label in files], np.int64), class_names, resized=resized
    )


def decoded(
    where: str, count: int, files: Callable[[], Iterable[File]], how: Reading
) -> tuple[npt.NDArray[np.uint8], int]:
    """All these images, gone through twice, uint8 [n, height, width, 3], or 1 where grey ones are wanted, and how many were resized.

    Raises UserError where sizes differ and none is wanted.
    """
    sizes: dict[tuple[int, int], str] = {}
    resized = 0
    for name, file in files():
        with _opened(file, name) as image:
            sizes.setdefault((image.height, image.width), name)
            resized += how.size not in (None, (image.height, image.width))
    if len(sizes) > 1 and how.size is None:
        one, other = (
            ("/".join(Path(name).parts[-2:]), *size) for size, name in list(sizes.items())[:2]
        )
        found = " and ".join(
            f"{name} has {height} × {width} pixels" for name, height, width in (one, other)
        )
        raise UserError(
            f"the images are of different sizes ({found}): set image-size, to which they are resized"
        )
    height, width = how.size or next(iter(sizes))
    images = scratch((count, height, width, 1 if how.grey else 3))
    largest = 0
    for i, (name, file) in enumerate(files()):
        images[i], deep = _read(file, (height, width), how.grey, name)
        largest = max(largest, deep)
    warn_of_dark(where, largest)
    return images, resized


def fitted(arrays: Arrays, size: tuple[int, int]) -> Arrays:
    """The same with images of this height and width, bilinear; what are no images, or are of this size, stays as it is."""
    from PIL import Image

    images = arrays.inputs
    if images.ndim != 4 or images.shape[1:3] == size:
        return arrays
    found = scratch((len(images), *size, images.shape[3]))
    for i, pixels in enumerate(images):
        image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
        found[i] = _pixels(image, size)
    return arrays._replace(inputs=found, resized=len(found))


def read_image(file: Path, size: tuple[int, int], *, grey: bool = False) -> npt.NDArray[np.uint8]:
    """A PNG or JPEG file (WebP or BMP, too) of any size and mode, resized to `size`, uint8 [height, width, 3], or 1 of grey.

    Raises UserError for a file that is none.
    """
    return _read(file, size, grey, str(file))[0]


def of_8_bits(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Pixels of 16 bits in 8."""
    return (pixels / 257).round().astype(np.uint8)


def warn_of_dark(where: str, largest: int) -> None:
    """A warning where a dataset's images of 16 bits reach no more than this (0: it has none) and so use few of the greys of 8."""
    if 0 < largest < _FEWER_BITS:
        told = f"scale them to the full range, or only {round(largest / 257) + 1} of 256 greys are used"
        logger.warning("%s: its 16-bit images reach %d of 65535: %s", where, largest, told)


def _read(
    file: Path | bytes, size: tuple[int, int], grey: bool, name: str
) -> tuple[npt.NDArray[np.uint8], int]:
    """What `read_image` gives, and the largest value of a file of 16 bits a pixel; 0 for others."""
    from PIL import Image

    with _opened(file, name) as image:
        if not image.mode.startswith("I"):
            return _pixels(image.convert("L" if grey else "RGB"), size), 0
        deep = np.asarray(image)  # which `convert` would cut off at 255
        return _pixels(Image.fromarray(of_8_bits(deep)).convert("L" if grey else "RGB"), size), int(
            deep.max()
        )


def _pixels(image: Image, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    from PIL.Image import Resampling

    return np.asarray(image.resize(size[::-1], Resampling.BILINEAR), np.uint8).reshape(*size, -1)


@contextmanager
def _opened(file: Path | bytes, name: str) -> Iterator[Image]:
    from PIL import Image

    try:
        with Image.open(
            io.BytesIO(file) if isinstance(file, bytes) else file,
            formats=("PNG", "JPEG", "WEBP", "BMP"),
        ) as image:
            yield image
    except (
        OSError,
        ValueError,
        SyntaxError,
        Image.DecompressionBombError,
    ):  # all that Pillow raises for a damaged file
        there = isinstance(file, bytes) or file.exists()
        raise UserError(
            f"{name}: " + ("no readable PNG or JPEG image" if there else "no such file")
        ) from None
