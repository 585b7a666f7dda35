"""CIFAR-10 and CIFAR-100: the public hub's parquet files, or the official batches, by torchvision,
which downloads them if there is no `data-path`."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.cache import downloads
from pfedlora_flwr.data.source import SIZE, Arrays, Reading
from pfedlora_flwr.errors import UserError, first_line
from pfedlora_flwr.files import from_json, made

TORCHVISION_REMEDY = "install both from one index: pip install --force-reinstall torch torchvision"
"""What to do where torchvision cannot be imported: most often it was built for another PyTorch than
the one beside it."""
_PARQUET = ("train.parquet", "test.parquet")


@dataclass(frozen=True)
class Cifar:
    """One of the two: what its files and their fields are called."""

    name: str
    class_names: tuple[str, ...]
    column: str  # of the labels, in parquet
    folder: str  # of the official batches

    @property
    def files(self) -> tuple[str, ...]:
        """What may lie in `data-path`."""
        return self.folder, _PARQUET[0]

    def read(self, _text: str, how: Reading) -> Arrays:
        """All images, the official train and test parts in that order. Raises UserError."""
        data_path = how.data_path
        root = Path(data_path).expanduser() if data_path else downloads()
        if data_path and not root.is_dir():
            advice = (
                f"give the folder that holds {self.name}'s files, or leave it empty to download"
                " them"
            )
            raise UserError(f"data-path {data_path!r} does not exist; {advice}")
        if any((root / name).exists() for name in _PARQUET):
            return self._parquet(root)
        if data_path and root.name == self.folder:
            root = root.parent
        if data_path and not (root / self.folder).is_dir():
            raise UserError(
                f"data-path {data_path!r} holds neither train.parquet and test.parquet nor"
                f" {self.folder}/"
            )
        return self._batches(root, download=not data_path)

    def _parquet(self, root: Path) -> Arrays:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from PIL import Image

        images, labels, class_names = [], [], None
        for file in (root / name for name in _PARQUET):
            try:
                table = pq.read_table(file, columns=["img", self.column])
                for row in _progress(table["img"].to_pylist(), f"decoding {file.name}"):
                    image = Image.open(io.BytesIO(row["bytes"]))
                    pixels = np.asarray(image.convert("RGB"), np.uint8)
                    if pixels.shape != (SIZE, SIZE, 3):
                        raise ValueError(f"an image of {pixels.shape}")
                    images.append(pixels)
                labels.append(np.asarray(table[self.column].to_numpy(), np.int64))
                class_names = class_names or _hub_names(table.schema.metadata, self.column)
            except FileNotFoundError:
                raise UserError(
                    f"{file} is missing: both train.parquet and test.parquet are needed"
                ) from None
            except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
                detail = first_line(str(error)) or type(error).__name__
                raise UserError(
                    f"{file} is corrupt or no {self.name} file ({detail}); give {self.name}'s by"
                    " data-path, or fetch it again"
                ) from None
        checked = self._checked(np.concatenate(labels), root)
        names = class_names or list(self.class_names)
        return Arrays(np.stack(images), checked, names, split=_official(labels))

    def _checked(self, labels: npt.NDArray[np.int64], where: Path) -> npt.NDArray[np.int64]:
        classes = len(self.class_names)
        if not len(labels):
            raise UserError(f"{where} holds no images")
        if labels.min() < 0 or labels.max() >= classes:
            raise UserError(f"{where}: the labels are not {self.name}'s (0 to {classes - 1})")
        return labels

    def _batches(self, root: Path, download: bool) -> Arrays:
        try:
            from torchvision import datasets
        except (ImportError, RuntimeError) as error:
            reason = first_line(str(error))
            advice = f"{TORCHVISION_REMEDY}; or give its files as parquet by data-path"
            raise UserError(
                f"{self.name} is read by torchvision, which cannot be imported ({reason}); {advice}"
            ) from None
        reader = getattr(datasets, self.name.upper())
        try:
            if download:
                made(root)
            parts = [reader(str(root), train=train, download=download) for train in (True, False)]
        except (OSError, RuntimeError) as error:
            if not download:  # torchvision knows their hashes
                raise UserError(
                    f"{root / self.folder} is corrupt or not {self.name}'s; fetch it again"
                ) from None
            raise UserError(
                f"{self.name} cannot be downloaded ({error}); fetch its files yourself and give"
                " them by data-path"
            ) from None
        labels = [np.asarray(part.targets, np.int64) for part in parts]
        inputs = np.concatenate([part.data for part in parts])
        return Arrays(inputs, np.concatenate(labels), parts[0].classes, split=_official(labels))


def _official(labels: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.str_]:
    """The part of each image, of those for training and those for tests."""
    return np.repeat(["train", "test"], [len(part) for part in labels])


CIFAR10 = Cifar(
    name="cifar10",
    class_names=(
        *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship"),
        "truck",
    ),
    column="label",
    folder="cifar-10-batches-py",
)
CIFAR100 = Cifar(
    name="cifar100",
    class_names=tuple(f"class {i}" for i in range(100)),
    column="fine_label",
    folder="cifar-100-python",
)


def _hub_names(metadata: dict[bytes, bytes] | None, column: str) -> list[str] | None:
    """The class names that the public hub's copies carry in their schema."""
    try:
        return from_json((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
    except (KeyError, ValueError, TypeError):
        return None


def _progress(rows: list[Any], title: str) -> Iterable[Any]:
    from rich.progress import track

    return track(rows, description=title, transient=True, disable=len(rows) < 1000)
