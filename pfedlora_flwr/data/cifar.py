"""CIFAR-10 and CIFAR-100: the public hub's parquet files or the official batches, downloaded if
there is no `data-path`."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.cache import downloads
from pfedlora_flwr.data.source import SIZE, Arrays, Reading
from pfedlora_flwr.errors import UserError

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
    train: tuple[str, ...]
    test: str
    labels: bytes
    meta: str
    meta_names: bytes

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
        if not data_path and not (root / self.folder).is_dir():
            self._download(root)
        for folder in (root / self.folder, root):
            if (folder / self.train[0]).exists():
                return self._batches(folder)
        raise UserError(
            f"data-path {data_path!r} holds neither train.parquet and test.parquet nor"
            f" {self.folder}/"
        )

    def _parquet(self, root: Path) -> Arrays:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from PIL import Image

        images, labels, class_names = [], [], None
        for file in (root / name for name in _PARQUET):
            try:
                table = pq.read_table(file, columns=["img", self.column])
                for row in _progress(table["img"].to_pylist(), f"decoding {file.name}"):
                    pixels = np.asarray(
                        Image.open(io.BytesIO(row["bytes"])).convert("RGB"), np.uint8
                    )
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
                detail = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
                raise UserError(
                    f"{file} is corrupt or no {self.name} file ({detail}); fetch it again"
                ) from None
        checked = self._checked(np.concatenate(labels), root)
        return Arrays(np.stack(images), checked, class_names or list(self.class_names))

    def _batches(self, folder: Path) -> Arrays:
        images, labels = [], []
        for file in (*self.train, self.test):
            batch = _unpickle(folder / file)
            try:
                images.append(
                    np.asarray(batch[b"data"], np.uint8)
                    .reshape(-1, 3, SIZE, SIZE)
                    .transpose(0, 2, 3, 1)
                )
                labels.append(np.asarray(batch[self.labels], np.int64))
            except (KeyError, ValueError, TypeError):
                raise UserError(
                    f"{folder / file} is corrupt or no {self.name} batch; fetch it again"
                ) from None
        meta = folder / self.meta
        class_names = (
            [n.decode() for n in _unpickle(meta)[self.meta_names]]
            if meta.exists()
            else list(self.class_names)
        )
        return Arrays(
            np.concatenate(images), self._checked(np.concatenate(labels), folder), class_names
        )

    def _checked(self, labels: npt.NDArray[np.int64], where: Path) -> npt.NDArray[np.int64]:
        classes = len(self.class_names)
        if not len(labels):
            raise UserError(f"{where} holds no images")
        if labels.min() < 0 or labels.max() >= classes:
            raise UserError(f"{where}: the labels are not {self.name}'s (0 to {classes - 1})")
        return labels

    def _download(self, root: Path) -> None:
        try:
            from torchvision import datasets
        except (ImportError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            advice = f"{TORCHVISION_REMEDY}; or give its files by data-path"
            raise UserError(
                f"{self.name} must be downloaded and torchvision cannot be imported ({reason});"
                f" {advice}"
            ) from None
        try:
            root.mkdir(parents=True, exist_ok=True)
            getattr(datasets, self.name.upper())(str(root), download=True)  # shows a progress bar
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"{self.name} cannot be downloaded ({error}); fetch its files yourself and give"
                " them by data-path"
            ) from None


CIFAR10 = Cifar(
    name="cifar10",
    class_names=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    column="label",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    labels=b"labels",
    meta="batches.meta",
    meta_names=b"label_names",
)
CIFAR100 = Cifar(
    name="cifar100",
    class_names=tuple(f"class {i}" for i in range(100)),
    column="fine_label",
    folder="cifar-100-python",
    train=("train",),
    test="test",
    labels=b"fine_labels",
    meta="meta",
    meta_names=b"fine_label_names",
)


def _hub_names(metadata: dict[bytes, bytes] | None, column: str) -> list[str] | None:
    """The class names that the public hub's copies carry in their schema."""
    try:
        return json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
    except (KeyError, ValueError, TypeError):
        return None


class _Plain(pickle.Unpickler):
    """Reads the official batches, which are pickles of plain data and NumPy arrays, and nothing
    that could run code."""

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


def _progress(rows: list[Any], title: str) -> Iterable[Any]:
    from rich.progress import track

    return track(rows, description=title, transient=True, disable=len(rows) < 1000)
