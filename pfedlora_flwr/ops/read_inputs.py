"""Reads the inputs of `pfedlora predict`: image files, texts, or rows of tables and arrays, as the
models take them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr import config
from pfedlora_flwr.data import tables
from pfedlora_flwr.data.arrays import DAMAGED, check_finite
from pfedlora_flwr.data.images import first_frames, left_out_of, read_image, suffix_of, visible
from pfedlora_flwr.data.source import Inputs, Reading
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.runs.trained import Trained
from pfedlora_flwr.training.kinds import ARRAYS, IMAGES, TEXT, Shape

_OF_TABLES = "data.sep", "data.decimal"
"""Keys of tables whose columns are known by their names."""
_AS_IT_IS = Reading()
STDIN, _LINES = Path("-"), ".jsonl"
_FAR = 10.0
"""Deviations from the training mean from which a value is named."""


@dataclass(frozen=True)
class Place:
    """Where an input comes from: an image file, or a file and the row in it, from 1."""

    file: Path
    row: int | None = None


@dataclass(frozen=True)
class Asked:
    """Inputs as a dataset has them [n, …], the place of each, and a line for each path that gives
    none.

    shape, feature_names: what they are as a model takes them. notes: what was left out or taken in
    part, a line each.
    """

    inputs: Inputs
    places: list[Place]
    broken: list[str]
    shape: Shape
    feature_names: tuple[str, ...]
    notes: list[str]


def with_keys(e: Experiment, options: Mapping[str, object], allowed: Sequence[str]) -> Experiment:
    """The run's Experiment with keys that say how other data is to be read. Raises UserError for
    keys that are not `allowed`, and wrong values."""
    for name in options:
        if name not in allowed:
            config.parse({name: options[name]})  # an unknown key is named as such
            others = f"; allowed: {', '.join(allowed)}" if allowed else ""
            of_data = "is not used for this data" if name.startswith("data") else "is as in the run"
            raise UserError(f"{name} {of_data}{others}")
    known, found = config.all_keys(), config.parse(options)
    return e.replace(**{known[name].attribute: value for name, value in found.items()})


def reading_of(trained: Trained, options: Mapping[str, object], paths: Iterable[Path]) -> Reading:
    """How these files are read for this model. options: of CSVs `data.sep` and `data.decimal`,
    where they are not the run's. Raises UserError for others, and where there is no CSV."""
    tables = any(path.is_dir() or suffix_of(path) == ".csv" for path in paths)
    allowed = _OF_TABLES if tables and ".csv" in trained.task.kind.suffixes else ()
    return Reading.of(with_keys(trained.experiment, options, allowed), "")


def read(
    paths: Iterable[Path], task: Task, feature_names: tuple[str, ...], how: Reading = _AS_IT_IS
) -> Asked:
    """The inputs in these files for models of this Task.

    Images are brought to its size and channels; of a table the columns of these names are taken. A
    folder stands for all such files in it and below, sorted; what is hidden is left out."""
    kind, found = task.kind, list[Inputs]()
    places: list[Place] = []
    broken: list[str] = []
    notes: list[str] = []
    several = 0
    for path in paths:
        inside = [path]
        if path.is_dir():
            inside = [file for file in visible(path) if suffix_of(file) in kind.suffixes]
            if inside and (others := left_out_of(path, kind.suffixes)):
                notes.append(f"{path}: left out: {others}")
        if not inside:
            broken.append(f"{path}: no file of {kind} ({', '.join(kind.suffixes)}) in this folder")
        for file in inside:
            try:
                inputs, frames = _inputs(file, task, feature_names, how)
            except UserError as error:
                broken.append(str(error))
                continue
            found.append(inputs)
            several += frames > 1
            rows = [None] if kind.one_a_file else range(1, len(inputs) + 1)
            places += [Place(file, row) for row in rows]
    together: npt.NDArray[Any] = np.concatenate(found) if found else np.empty(0, np.float32)
    notes += first_frames(several)
    return Asked(together, places, broken, task.shape, feature_names, notes)


def _inputs(
    file: Path, task: Task, feature_names: tuple[str, ...], how: Reading
) -> tuple[Inputs, int]:
    """The rows of a file, or its one image, and how many frames that has."""
    suffix = _LINES if file == STDIN else suffix_of(file)
    if task.kind == IMAGES:  # whatever the file is called
        size = task.shape[1], task.shape[2]
        pixels, frames = read_image(file, size, grey=task.shape[0] == 1)
        return pixels[None], frames
    allowed = task.kind.suffixes
    if ".csv" in allowed:
        allowed = (*allowed, _LINES)
    if suffix not in allowed:
        raise UserError(
            f"{file}: the model takes {task.kind} {list(task.shape)}; expected one of"
            f" {', '.join(allowed)}"
        )
    if suffix == ".txt":
        return _of_text(file, task), 1
    if suffix in ARRAYS:
        return _of_array(file, task, how), 1
    if not feature_names:
        raise UserError(
            f"{file}: the model does not know its columns by name, because its data had no names;"
            " give an .npy or .npz file"
        )
    if suffix == _LINES:
        table = tables.json_lines(str(file), _bytes(file))
    else:
        table = tables.read(file, suffix[1:], how)
    if task.kind == TEXT:
        return tables.texts_of(str(file), table, feature_names[0], task.shape[0]), 1
    return tables.features_of(str(file), table, feature_names, how, training=False), 1


def _bytes(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == STDIN else file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None


def far_outside(asked: Asked, mean: Sequence[float], std: Sequence[float]) -> Iterator[str]:
    """A line for each feature that has a value far from those of training: an error in its unit, or
    a case of which the model knows nothing."""
    if not asked.feature_names or len(mean) != len(asked.feature_names):
        return
    away = np.abs(np.asarray(asked.inputs, np.float64) - mean) / np.asarray(std)
    away = np.nan_to_num(away)  # what is missing is nowhere
    for i, name in enumerate(asked.feature_names):
        row = int(away[:, i].argmax())
        if away[row, i] > _FAR:
            place, value = asked.places[row], f"{name} is {asked.inputs[row, i]:g}"
            far = f"{away[row, i]:.0f} standard deviations from the mean of the training rows"
            yield f"{place.file}, row {place.row}: {value}, {far}"


def _of_text(file: Path, task: Task) -> Inputs:
    """A file that is one text."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{file}: no readable text in UTF-8") from None
    if not text.strip():
        raise UserError(f"{file}: it holds no text")
    return tables.as_bytes(str(file), [text], task.shape[0])


def _of_array(file: Path, task: Task, how: Reading) -> Inputs:
    """An .npy file, or the array `inputs` of an .npz file, or its only one."""
    wanted = f"an array [n, {', '.join(map(str, task.shape))}]"
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                loaded = loaded[loaded.files[0] if len(loaded.files) == 1 else "inputs"]
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except (KeyError, *DAMAGED):
        raise UserError(f"{file}: expected {wanted}, in an .npz file as `inputs`") from None
    inputs = task.kind.taken(loaded)
    if inputs is None or loaded.shape[1:] != task.shape or not len(loaded):
        raise UserError(
            f"{file}: it holds {loaded.dtype} {list(loaded.shape)}, and the model takes"
            f" {task.kind}; expected {wanted}"
        )
    check_finite(str(file), inputs, missing=how.fills)
    return inputs
