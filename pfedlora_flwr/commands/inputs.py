"""What `pfedlora predict` is asked about: image files, or the rows of tables and arrays, as the models take them."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data import tables
from pfedlora_flwr.data.arrays import check_finite
from pfedlora_flwr.data.images import READABLE, read_image
from pfedlora_flwr.data.source import Inputs, Shape
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models.task import Task

_ARRAYS, _TABLES = (".npz", ".npy"), (".csv", ".parquet")
_SUFFIXES = {"images": READABLE, "series": _ARRAYS, "vectors": (*_TABLES, *_ARRAYS)}
"""Of the files that hold inputs of a kind."""


@dataclass(frozen=True)
class Place:
    """Where an input comes from: an image file, or a file and the row in it, from 1."""

    file: Path
    row: int | None = None


@dataclass(frozen=True)
class Asked:
    """Inputs as a dataset has them [n, …], the place of each, and a line for each path that gives none.

    shape, feature_names: what they are as a model takes them.
    """

    inputs: Inputs
    places: list[Place]
    broken: list[str]
    shape: Shape
    feature_names: tuple[str, ...]


def read(paths: Iterable[Path], task: Task, feature_names: tuple[str, ...]) -> Asked:
    """The inputs in these files for models of this Task.

    Images are brought to its size and channels; of a table the columns of these names are taken. A folder stands for all such files in
    it and below, sorted; what is hidden is left out.
    """
    found: list[Inputs] = []
    places: list[Place] = []
    broken: list[str] = []
    for path in paths:
        inside = _inside(path, _SUFFIXES[task.kind]) if path.is_dir() else [path]
        if not inside:
            what = (
                "image"
                if task.kind == "images"
                else f"file of {task.kind} ({', '.join(_SUFFIXES[task.kind])})"
            )
            broken.append(f"{path}: no {what} in this folder")
        for file in inside:
            try:
                found.append(_inputs(file, task, feature_names))
            except UserError as error:
                broken.append(str(error))
                continue
            places += (
                [Place(file)]
                if task.kind == "images"
                else [Place(file, i + 1) for i in range(len(found[-1]))]
            )
    inputs: npt.NDArray[Any] = np.concatenate(found) if found else np.empty(0, np.float32)
    return Asked(inputs, places, broken, task.shape, feature_names)


def _inputs(file: Path, task: Task, feature_names: tuple[str, ...]) -> Inputs:
    if task.kind == "images":
        return read_image(file, (task.shape[1], task.shape[2]), grey=task.shape[0] == 1)[None]
    if file.suffix.lower() in _ARRAYS:
        return _of_array(file, task)
    if file.suffix.lower() not in _SUFFIXES[task.kind]:
        raise UserError(
            f"{file}: the model takes {task.kind} {list(task.shape)}; expected one of {', '.join(_SUFFIXES[task.kind])}"
        )
    if not feature_names:
        raise UserError(
            f"{file}: the model does not know its columns by name, since its data had no names; give an .npy or .npz file"
        )
    return tables.features_of(str(file), tables.read(file, file.suffix.lower()[1:]), feature_names)


def _of_array(file: Path, task: Task) -> npt.NDArray[np.float32]:
    """An .npy file, or the array `inputs` of an .npz file, or its only one."""
    wanted = f"an array [n, {', '.join(map(str, task.shape))}]"
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                loaded = loaded[loaded.files[0] if len(loaded.files) == 1 else "inputs"]
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile):
        raise UserError(f"{file}: expected {wanted}, in an .npz file as `inputs`") from None
    if loaded.shape[1:] != task.shape or loaded.dtype.kind not in "iuf" or not len(loaded):
        raise UserError(
            f"{file}: it holds {loaded.dtype} {list(loaded.shape)}, and the model takes {task.kind}; expected {wanted}"
        )
    with np.errstate(over="ignore"):
        found = loaded.astype(np.float32)
    check_finite(str(file), found)
    return found


def _inside(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    found = (
        file for file in folder.rglob("*") if file.suffix.lower() in suffixes and file.is_file()
    )
    return sorted(
        file
        for file in found
        if not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
