"""Images: a folder for each class, an image file of any size and mode, and many of them as one
array."""

from __future__ import annotations

import hashlib
import io
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.cache import scratch
from pfedlora_flwr.data.source import SPLITS, Arrays, Reading
from pfedlora_flwr.errors import UserError, first_line, some
from pfedlora_flwr.files import disguised
from pfedlora_flwr.training.kinds import IMAGES

if TYPE_CHECKING:
    from PIL.Image import Image

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")
_IN_WORDS = "PNG, JPEG, WebP, BMP, TIFF or GIF"
_ORIENTATION = 0x0112
"""EXIF's tag."""
_WHITE_IS_ZERO = 262
"""TIFF's tag of what 0 is."""
_ON_ITS_SIDE = (5, 6, 7, 8)
_DEEP = "in sub-folders (data.subfolders=true takes them)"
_FEWER_BITS = 2**14
"""Images of 16 bits that stay below it have but a quarter of the greys; those of 12, as X-rays are,
17 of 256."""
File = tuple[str, Path | bytes]
"""An image file: what messages call it, and where or what it is."""


def folder(text: str, how: Reading) -> Arrays:
    """`folder:PATH`: one folder of images for each class, or such folders in `train`, `test` and
    perhaps `validation`, which are official parts; a note counts what is left out."""
    root = Path(text).expanduser()
    if not root.is_dir():
        raise UserError(
            f"dataset folder {root} does not exist; expected a folder of one folder of images for"
            " each class"
        )
    parts = _folders(root)
    of = {SPLITS.get(part.casefold()) for part in parts}
    official = {0, 2} <= of <= {0, 1, 2} and all(_folders(root / part) for part in parts)
    tops = [root / part for part in parts] if official else [root]
    class_names = sorted({name for top in tops for name in _folders(top)})
    left_out = Counter(_kind(file) for file in visible(root) if file.parent in (root, *tops))
    files: list[tuple[Path, int]] = []
    split: list[str] = []
    for top, (label, name) in product(tops, enumerate(class_names)):
        for file in visible(top / name):
            deep = file.parent != top / name
            if file.suffix.lower() not in IMAGES.suffixes:
                left_out[_kind(file)] += 1
            elif deep and not how.subfolders:
                left_out[_DEEP] += 1
            else:
                files.append((file, label))
                split.append(top.name)
    if (
        not official
        and {name.casefold() for name in class_names} <= SPLITS.keys()
        and any(part.is_dir() for name in class_names for part in (root / name).iterdir())
    ):
        raise UserError(
            f"dataset folder {root}: {some(class_names)} are called as parts of a dataset,"
            " and have folders in them: name one of them, or put each class's images together"
        )
    if not files or (len(class_names) < 2 and not how.one_class):
        raise UserError(
            f"dataset folder {root}: expected at least two class folders with images"
            f" ({_IN_WORDS}){f'; there: {_counted(left_out)}' if left_out else ''}"
        )
    found = decoded(len(files), lambda: ((str(file), file) for file, _ in files), how)
    return Arrays(
        found.images,
        np.array([label for _, label in files], np.int64),
        class_names,
        resized=found.resized,
        notes=(*([f"left out: {_counted(left_out)}"] if left_out else []), *found.notes),
        original=found.original,
        split=np.array(split) if official else None,
    )


def _folders(root: Path) -> list[str]:
    """The names of the folders in it, sorted; none where it is not there."""
    inside = root.iterdir() if root.is_dir() else ()
    return sorted(p.name for p in inside if p.is_dir() and not p.name.startswith("."))


def visible(folder: Path) -> list[Path]:
    """All files in a folder and below it, sorted, but those whose name, or a folder's on the way,
    begins with a dot."""
    return sorted(
        path
        for path in folder.rglob("*")
        if not path.is_dir()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def suffix_of(file: Path) -> str:
    """In small letters; of a gzipped CSV, which is read as any other, `.csv`."""
    return ".csv" if file.name.lower().endswith(".csv.gz") else file.suffix.lower()


def left_out_of(folder: Path, suffixes: Sequence[str]) -> str:
    """What `visible` finds there beside files of these suffixes, by kind and count; empty: none."""
    return _counted(Counter(_kind(f) for f in visible(folder) if suffix_of(f) not in suffixes))


def _kind(file: Path) -> str:
    return file.suffix.lower() or "without a suffix"


def _counted(kinds: Counter[str]) -> str:
    return some([f"{count} {kind}" for kind, count in kinds.most_common()])


class Decoded(NamedTuple):
    """Images uint8 [n, height, width, 3], or 1 where grey ones are wanted; how many were resized;
    notes; and SHA-256 of the files."""

    images: npt.NDArray[np.uint8]
    resized: int
    notes: list[str]
    original: str


def decoded(count: int, files: Callable[[], Iterable[File]], how: Reading) -> Decoded:
    """All these images, gone through twice. Raises UserError if sizes differ and none is
    wanted."""
    sizes: dict[tuple[int, int], str] = {}
    resized = 0
    for name, file in files():
        with _opened(file, name) as image:
            size = _size(image)
        sizes.setdefault(size, name)
        resized += how.size not in (None, size)
    if len(sizes) > 1 and how.size is None:
        one, other = (
            ("/".join(Path(name).parts[-2:]), *size) for size, name in list(sizes.items())[:2]
        )
        found = " and ".join(
            f"{name} has {height} × {width} pixels" for name, height, width in (one, other)
        )
        raise UserError(
            f"the images have different sizes ({found}): set image-size, to which they are resized"
        )
    height, width = how.size or next(iter(sizes))
    images = scratch((count, height, width, 1 if how.grey else 3))
    largest = several = 0
    original = hashlib.sha256()
    for i, (name, file) in enumerate(files()):
        held = _bytes(file, name)
        original.update(len(held).to_bytes(8, "little") + held)
        images[i], deep, frames = _read(held, (height, width), how.grey, name)
        largest, several = max(largest, deep), several + (frames > 1)
    return Decoded(images, resized, [*first_frames(several), *dark(largest)], original.hexdigest())


def first_frames(several: int) -> list[str]:
    """A note where so many files hold several frames, as an animated GIF does."""
    return [f"files with several frames, of which the first is taken: {several}"] if several else []


def fitted(arrays: Arrays, size: tuple[int, int]) -> Arrays:
    """The same with images of this height and width, bilinear; what are no images, or are of this
    size, stays as it is."""
    from PIL import Image

    images = arrays.inputs
    if not IMAGES.holds(images) or images.shape[1:3] == size:
        return arrays
    found = scratch((len(images), *size, images.shape[3]))
    for i, pixels in enumerate(images):
        image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
        found[i] = _pixels(image, size)
    return arrays._replace(inputs=found, resized=len(found))


def read_image(
    file: Path, size: tuple[int, int], *, grey: bool = False
) -> tuple[npt.NDArray[np.uint8], int]:
    """An image file of any size and mode, turned as its EXIF says and resized to `size`, uint8
    [height, width, 3], or 1 of grey; and the number of its frames, of which the first is taken.

    Raises UserError for a file that is none.
    """
    pixels, _, frames = _read(file, size, grey, str(file))
    return pixels, frames


def of_8_bits(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Pixels of 16 bits in 8."""
    return (pixels / 257).round().astype(np.uint8)


def dark(largest: int) -> list[str]:
    """A note where a dataset's images of 16 bits reach no more than this (0: it has none) and so
    use few of the greys of 8."""
    if not 0 < largest < _FEWER_BITS:
        return []
    told = f"the 16-bit images reach {largest} of 65535: scale them to the full range"
    return [f"{told}, or only {round(largest / 257) + 1} of 256 greys are used"]


def _read(
    file: Path | bytes, size: tuple[int, int], grey: bool, name: str
) -> tuple[npt.NDArray[np.uint8], int, int]:
    """The pixels, the largest value of a file of 16 bits a pixel (0 for others), and the frames."""
    from PIL import Image

    with _opened(file, name) as opened:
        frames = getattr(opened, "n_frames", 1)
        if opened.format == "TIFF" and frames > 1:
            raise UserError(f"{name}: it has {frames} pages; expected one a file")
        image = _upright(opened)
        mode = "L" if grey else "RGB"
        if not image.mode.startswith(("I", "F")):
            return _pixels(image.convert(mode), size), 0, frames
        deep = np.asarray(image)  # which `convert` would cut off at 255
        low, high = deep.min(), deep.max()
        if deep.dtype.kind == "f" or low < 0 or high >= 2**16:
            raise UserError(f"{name}: its pixels go from {low} to {high}; expected 8 or 16 bits")
        if opened.format == "TIFF" and opened.tag_v2.get(_WHITE_IS_ZERO, 1) == 0:  # type: ignore[attr-defined]
            deep = 2**16 - 1 - deep.astype(np.int64)  # as Pillow does with 8 bits
        return _pixels(Image.fromarray(of_8_bits(deep)).convert(mode), size), int(high), frames


def _orientation(image: Image) -> int:
    """How the file says that the image is to be turned, 1 to 8; 1, as it is, where it does not say
    so or Pillow turns it itself."""
    if image.format == "TIFF":
        return 1
    try:
        return image.getexif().get(_ORIENTATION, 1)
    except (SyntaxError, struct.error):
        return 1


def _size(image: Image) -> tuple[int, int]:
    """Height and width once it is upright."""
    size = image.height, image.width
    return size[::-1] if _orientation(image) in _ON_ITS_SIDE else size


def _upright(image: Image) -> Image:
    from PIL import ImageOps

    return image if _orientation(image) == 1 else ImageOps.exif_transpose(image)


def _pixels(image: Image, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    from PIL.Image import Resampling

    return np.asarray(image.resize(size[::-1], Resampling.BILINEAR), np.uint8).reshape(*size, -1)


@contextmanager
def _opened(file: Path | bytes, name: str) -> Iterator[Image]:
    from PIL import Image, PngImagePlugin

    # texts beside the pixels, as of a program's settings, are no reason to refuse an image
    PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY
    try:
        with Image.open(
            io.BytesIO(file) if isinstance(file, bytes) else file, formats=_FORMATS
        ) as image:
            yield image
    except UserError:
        raise
    # all that Pillow raises for a damaged file
    except (
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        IndexError,
        TypeError,
        struct.error,
        Image.DecompressionBombError,
    ) as error:
        raise _unreadable(file, name, error) from None


def _bytes(file: Path | bytes, name: str) -> bytes:
    try:
        return file if isinstance(file, bytes) else file.read_bytes()
    except OSError as error:
        raise _unreadable(file, name, error) from None


def _unreadable(file: Path | bytes, name: str, error: Exception) -> UserError:
    """The line of an image that cannot be read, with its cause where that is known."""
    from PIL import Image

    if isinstance(file, Path) and not file.exists():
        return UserError(f"{name}: no such file")
    if isinstance(error, Image.DecompressionBombError):
        told = "{} pixels; allowed: at most {}".format(*re.findall(r"\d+", str(error)))
    elif isinstance(error, OSError) and error.strerror:
        told = error.strerror
    else:
        held = file if isinstance(file, bytes) else file.read_bytes()
        unknown = isinstance(error, Image.UnidentifiedImageError)
        told = disguised(held) or ("" if unknown else first_line(str(error)))
    return UserError(f"{name}: no readable image{told and f' ({told})'}")
