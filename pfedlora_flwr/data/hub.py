"""Hugging Face datasets: from the hub, a local folder of their files, or the output of
`save_to_disk`. They need the extra `data`."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data import tables
from pfedlora_flwr.data.arrays import check_labels, checked
from pfedlora_flwr.data.images import Decoded, File, decoded
from pfedlora_flwr.data.source import Arrays, Reading
from pfedlora_flwr.deadline import within
from pfedlora_flwr.errors import UserError, brief, counted, permissions, some
from pfedlora_flwr.files import absolute, cache_root, made

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

logger = logging.getLogger(__name__)

_SECONDS = 5.0
"""The hub may take to say that it is there: the library would ask again and again."""
_LOCAL = "fetch it where there is a network, `save_to_disk(PATH)`, and take hf:PATH"
_IMAGE, _CLASS, _ARRAY = "Image", "ClassLabel", "array"
_TYPES = dict.fromkeys(("List", "LargeList", "Sequence", "Array2D", "Array3D"), _ARRAY) | {
    "binary": _IMAGE,
    "large_binary": _IMAGE,
}
"""Columns that hold an image or an array in each row, by the library's names of their types."""


def huggingface(text: str, how: Reading) -> Arrays:
    """`hf:NAME` of the hub (`hf:NAME:CONFIGURATION`) or `hf:PATH`: the rows of all splits that have
    labels, in their order.

    Inputs are the column that is named, or the only one of images or else of arrays; where there is
    none, those of numbers, as in a table. Raises UserError."""
    where = f"dataset 'hf:{text}'"
    with tempfile.TemporaryDirectory(dir=made(cache_root())) as aside:
        rows, official, notes = _labelled(where, _splits(where, text, aside), how)
        found = _arrays(where, rows, how)
        split = found.split if how.split_column else official
        return found._replace(notes=(*notes, *found.notes), split=split)


def is_path(text: str) -> bool:
    """Whether it is a folder here, or can be nothing else."""
    return text.startswith(("/", ".", "~")) or Path(text).exists()


def _arrays(where: str, rows: Dataset, how: Reading) -> Arrays:
    if not len(rows):
        raise UserError(f"{where}: it has no rows")
    label = _label(where, rows, how)
    column = None
    if not how.text_column:
        column = (
            how.input_column
            or _only(where, rows, _IMAGE, "data.input-column", how)
            or _only(where, rows, _ARRAY, "data.input-column", how)
        )
    tables.check_apart(where, label, how)
    named = {
        "data.label-column": label,
        "data.client-column": how.client_column,
        "data.input-column": column,
        "data.text-column": how.text_column,
        "split.column": how.split_column,
    }
    for key, name in named.items():
        if name is not None and name not in rows.column_names:
            raise UserError(
                f"{where}: it has no column {name!r}, but {some(rows.column_names)}; mend {key}"
            )
    others = [*dict.fromkeys(filter(None, (label, how.client_column, how.split_column)))]
    table = rows.select_columns(others if column else rows.column_names).with_format("arrow")[:]
    found = table.column(label)
    if _type(rows, label) == _CLASS:
        tables.check_there(where, label, found)
        labels, names = found.to_numpy(), list(rows.features[label].names)
        if how.class_names and list(how.class_names) != names:
            raise UserError(
                f"{where}: data.class-names is {some(how.class_names)}; allowed: auto, or"
                f" {some(names)}"
            )
    else:
        labels, names = tables.labels_of(where, label, found, how)
    owners = tables.owners_of(where, table, how)
    if column:
        inputs, resized, notes, original = _inputs(where, rows, column, how)
        made = checked(where, inputs, labels, names, owners, how)
        return made._replace(
            resized=resized,
            notes=(*notes, *made.notes),
            original=original,
            split=tables.split_values(where, table, how),
        )
    check_labels(where, labels, names, how)
    return tables.with_inputs(where, table, label, labels.astype(np.int64), names, owners, how)


def _inputs(
    where: str, rows: Dataset, column: str, how: Reading
) -> Decoded | tuple[npt.NDArray[Any], int, list[str], str]:
    """What a column of images or arrays holds, how many images were resized, notes, and a hash of
    image files."""
    kind = _type(rows, column)
    if kind == _IMAGE:
        return decoded(len(rows), lambda: _files(where, rows, column), how)
    if kind != _ARRAY:
        raise UserError(
            f"{where}: data.input-column is {column!r}, which holds {kind}; expected images, or an"
            " array in each row"
        )
    own = rows.select_columns([column])
    # the library's own choice is float32 and int64
    dtype = _numbers(where, column, own.with_format("arrow")[:].column(column))
    return np.asarray(own.with_format("numpy", **dtype)[:][column]), 0, [], ""


def _numbers(where: str, name: str, column: pa.ChunkedArray) -> dict[str, Any]:
    """The type of the numbers in a column of arrays, as NumPy takes it; nothing for what is no
    number. Raises UserError where one is missing: as an integer it would be 0."""
    import pyarrow as pa

    tables.check_there(where, name, column)
    kind = column.type
    for part in column.chunks:
        inner = part
        while (own := isinstance(inner, pa.ExtensionArray)) or (
            pa.types.is_nested(inner.type) and not pa.types.is_struct(inner.type)
        ):
            inner = inner.storage if own else inner.flatten()
            if inner.null_count:
                raise UserError(
                    f"{where}: column {name!r} has arrays in which a value is missing: fill it, or"
                    " remove their rows"
                )
        kind = inner.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return {"dtype": kind.to_pandas_dtype()} if is_number else {}


def _files(where: str, rows: Dataset, column: str) -> Iterator[File]:
    from datasets import Image

    own = rows.select_columns([column])
    if isinstance(rows.features[column], Image):
        own = own.cast_column(column, Image(decode=False))
    for i, row in enumerate(own, 1):
        held = {"bytes": row[column]} if isinstance(row[column], bytes) else row[column] or {}
        if not (held.get("bytes") or held.get("path")):
            raise UserError(f"{where}: column {column!r} has no image in row {i}")
        if not held.get("bytes"):
            _check_files([held["path"]])
        yield f"{where}, row {i}", held.get("bytes") or Path(held["path"])


def _type(rows: Dataset, column: str) -> str:
    """What a column holds: an image, an array, a class, or the name of another type."""
    feature = rows.features[column]
    # an image, of which the file does not say it
    if isinstance(feature, dict) and "bytes" in feature:
        return _IMAGE
    name = type(feature).__name__
    if name == "Value":
        name = getattr(feature, "dtype", "")
    return _TYPES.get(name, name)


def _label(where: str, rows: Dataset, how: Reading) -> str:
    return how.label_column or _only(where, rows, _CLASS, "data.label-column", how) or tables.LABEL


def _only(where: str, rows: Dataset, kind: str, key: str, how: Reading) -> str | None:
    """The only column of this type but the clients' and one passed over; None if there is none.
    Raises UserError where there are several."""
    found = [
        name
        for name in rows.column_names
        if name not in (how.client_column, how.passed_over) and _type(rows, name) == kind
    ]
    if len(found) > 1:
        raise UserError(
            f"{where}: several columns are of the type {kind} ({some(found)}): set {key}"
        )
    return found[0] if found else None


def _labelled(
    where: str, splits: Mapping[str, Dataset], how: Reading
) -> tuple[Dataset, npt.NDArray[np.str_] | None, list[str]]:
    """The rows of all splits but those in which every label is missing or -1, as often in a hub's
    test split; the split of each, if there are several; and a note that names those left out.
    Raises UserError."""
    from datasets import concatenate_datasets

    label = _label(where, next(iter(splits.values())), how)
    kept = {name: rows for name, rows in splits.items() if not _unlabelled(rows, label)} or splits
    left_out = [name for name in splits if name not in kept]
    gone = counted(len(left_out), "split")
    told = f"left out: {gone} in which no row has a label: {some(left_out)}"
    try:
        rows = concatenate_datasets([*kept.values()])
    except Exception as error:  # of several types
        raise UserError(f"{where}: its splits cannot be joined: {brief(error)}") from None
    several = len(kept) > 1
    names = np.repeat([*kept], [len(part) for part in kept.values()]) if several else None
    return rows, names, [told] if left_out else []


def _unlabelled(rows: Dataset, label: str) -> bool:
    if label not in rows.column_names or not len(rows) or _type(rows, label) == _ARRAY:
        return False
    found = rows.select_columns([label]).with_format("arrow")[:].column(label)
    return {*found.unique().to_pylist()} <= {None, -1}


def _splits(where: str, text: str, aside: str) -> Mapping[str, Dataset]:
    """The rows of each split. What the library makes of a local folder's files goes to the folder
    `aside`; what it has fetched before is taken where the hub does not answer. Raises UserError."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{where} takes the package datasets ({brief(error)}): pip install"
            " 'pfedlora-flwr[data]'"
        ) from None
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    path, here, offline = Path(text).expanduser(), is_path(text), datasets.config.HF_HUB_OFFLINE
    if here and not path.is_dir():
        raise UserError(f"{where}: there is no such folder")
    name, _, configuration = text.partition(":")
    if not here and Path(name).is_dir():  # which the library would take
        permissions.check_file("dataset", name, permissions.DATA)
    refusal = "" if here or offline else _refusal(name)
    try:
        if any((path / file).exists() for file in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(str(path))
            for part in found.values() if isinstance(found, datasets.DatasetDict) else [found]:
                _check_files(file["filename"] for file in part.cache_files)
        elif here:
            _check_card(datasets.load_dataset_builder(str(path), cache_dir=aside))
            found = datasets.load_dataset(str(path), cache_dir=aside)
        else:
            # then the library looks in its own cache, and asks nobody
            datasets.config.HF_HUB_OFFLINE = offline or bool(refusal)
            _check_card(datasets.load_dataset_builder(name, configuration or None))
            found = datasets.load_dataset(name, configuration or None)
    except permissions.NotAllowed:
        raise
    except Exception as error:  # of many types, the libraries' beneath it among them
        if refusal:
            told = f": {refusal}, nor the library's own cache ({brief(error)})"
        else:
            told = f" cannot be read: {brief(error)}"
        raise UserError(
            f"{where}{told}" + (f"; {_LOCAL}" if refusal or (offline and not here) else "")
        ) from None
    finally:
        datasets.config.HF_HUB_OFFLINE = offline
    if refusal:
        logger.warning("%s: %s; it is taken from the library's own cache", where, refusal)
    return found if isinstance(found, datasets.DatasetDict) else {"": found}


def _check_card(builder: Any) -> None:
    """Asks for each file that the dataset's own card names. Raises NotAllowed."""
    files = (builder.config.data_files or {}).values()
    _check_files(file.rpartition("::")[2] for of_split in files for file in of_split)


def _check_files(files: Iterable[str]) -> None:
    """Asks for files that a dataset names: somebody's may name any of this machine, or of the
    network. Raises NotAllowed."""
    from datasets import config

    if permissions.own_machine():
        return
    for file in files:
        if file.startswith(("hf://", "https://", "http://")):
            permissions.check_download("dataset", file)
        else:
            cached = str(config.HF_CACHE_HOME)
            path = str(absolute(file.removeprefix("file://")))
            permissions.check_file("dataset", path, permissions.DATA, also=cached)


def _refusal(name: str) -> str:
    """Why the hub does not give the dataset; empty where it says in time that it has it."""
    from huggingface_hub import HfApi

    try:
        within(_SECONDS, lambda: HfApi().dataset_info(name, timeout=_SECONDS))
    except Exception as error:  # of many types, the network's beneath them among them
        return f"the hub does not give it ({brief(error)})"
    return ""
