"""The user's arrays, from an .npz file or a function, and the checks of all arrays from outside."""

from __future__ import annotations

import inspect
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence, Set
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data import tables
from pfedlora_flwr.data.images import dark, of_8_bits
from pfedlora_flwr.data.normalisation import coarse
from pfedlora_flwr.data.source import CLASSIFY, LARGEST, SEVERAL, Arrays, Inputs, Reading
from pfedlora_flwr.errors import UserError, kind, some
from pfedlora_flwr.files import BEGIN, disguised
from pfedlora_flwr.models.registry import made
from pfedlora_flwr.training import kinds
from pfedlora_flwr.training.kinds import IMAGES, KINDS

DAMAGED = (
    ValueError,
    OSError,
    EOFError,
    TypeError,
    SyntaxError,
    NotImplementedError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy raises for files that are none of its, or are cut off or damaged."""
_MOST_CLASSES = 100_000
_TOGETHER = 1_000_000
"""Numbers that are looked at at once."""
_FORMS = [f"{kind} {kind.arrays}" for kind in KINDS]
_PARTS = "", "validation_", "test_"
"""How the arrays of official parts begin."""
_FILE = "an npz with `images` or `inputs`, and `labels` [n]"


def npz(text: str, how: Reading) -> Arrays:
    """`npz:FILE`: `images` or `inputs`, `labels` [n], and perhaps `class_names` and `clients` [n];
    for official parts also `test_inputs` (or images), `test_labels` and `test_clients`, and the
    same with `validation_`."""
    path = Path(text).expanduser()
    own = ("images", "inputs", "labels", "clients")
    extra = [how.split_column] if how.split_column else []
    every = [f"{part}{name}" for part in _PARTS for name in (*own, *extra)]
    held, official = _joined(path, archive(path, [*every, "class_names"], _FILE))
    name = "images" if "images" in held else "inputs"
    if not {name, "labels"} <= held.keys():
        raise UserError(
            f"{path}: it has no `{'labels' if name in held else name}`; expected {_FILE}"
        )
    inputs, labels, owners = held[name], held["labels"], held.get("clients")
    names = names_of(str(path), held.get("class_names"))
    if owners is not None:
        owners = _as_keys(f"{path}: clients", owners, "integers or text")
    notes: list[str] = []
    if name == "images" and inputs.dtype == np.uint16:
        notes = dark(int(inputs.max(initial=0)))
        inputs = of_8_bits(inputs)
    if name == "images" and (inputs.dtype != np.uint8 or inputs.ndim == 2):
        told = "scale images to 0 … 255 and save them as uint8, or call series and vectors `inputs`"
        raise UserError(
            f"{path}: images is {inputs.dtype} {list(inputs.shape)}; expected {IMAGES.arrays},"
            f" uint16, too: {told}"
        )
    found = checked(str(path), inputs, labels, names, owners, how, called=name)
    split = _split(str(path), held, how, len(labels)) if how.split_column else official
    return found._replace(notes=(*notes, *found.notes), split=split)


def _joined(
    path: Path, held: dict[str, npt.NDArray[Any]]
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.str_] | None]:
    """An archive's arrays, the official parts behind one another, and the part of each sample; None
    where there is one part. Raises UserError for parts that do not fit together."""
    there = [part for part in _PARTS if f"{part}labels" in held]
    if there in ([], [""]):
        return held, None
    found, lengths = dict[str, npt.NDArray[Any]](), [len(held[f"{part}labels"]) for part in there]
    for name in [name for name in held if not name.startswith(("test_", "validation_"))]:
        if name == "class_names":
            found[name] = held[name]
            continue
        arrays = [held.get(f"{part}{name}") for part in there]
        shapes = {None if a is None else (a.dtype.kind, a.shape[1:]) for a in arrays}
        if None in shapes or len(shapes) > 1:
            raise UserError(f"{path}: `{there[-1]}{name}` is missing, or unlike `{name}`")
        found[name] = np.concatenate([a for a in arrays if a is not None])
    return found, np.repeat([part.rstrip("_") or "train" for part in there], lengths)


def _split(where: str, held: Mapping[Any, Any], how: Reading, n: int) -> npt.NDArray[Any]:
    """The values of `split.column` [n]. Raises UserError."""
    if how.split_column not in held:
        raise UserError(f"{where}: it has no `{how.split_column}`, which split.column names")
    told = f"{where}: {how.split_column}"
    found = _as_keys(told, held[how.split_column], "integers, numbers or text")
    if found.dtype.kind == "M":
        found = found.astype("datetime64[us]").astype(np.int64)
    if found.shape != (n,) or found.dtype.kind not in "iufU":
        raise UserError(
            f"{told} is {found.dtype} {list(found.shape)}; expected text or numbers [n]"
        )
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise UserError(f"{told} has values that are missing or infinite")
    return found


def archive(path: Path, names: Sequence[str], wanted: str) -> dict[str, npt.NDArray[Any]]:
    """Those arrays of an .npz file that have these names. Raises UserError, with what is wrong, for
    a file that is none, or holds none of them."""
    try:
        with path.open("rb") as stream:
            begins = stream.read(BEGIN)
    except FileNotFoundError:
        raise UserError(f"file {path} does not exist") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; expected {wanted}") from None
    if not begins.startswith(b"PK"):
        told = disguised(begins) or "it is not an npz file"
        raise UserError(f"{path}: {told}; expected {wanted}")
    name = ""
    try:
        with np.load(path, allow_pickle=False) as loaded:
            found = {}
            for name in loaded.files:
                if name in names:
                    found[name] = loaded[name]
            there = loaded.files
    except DAMAGED as error:
        objects = f"`{name}` holds objects: save it as numbers, or as text"
        told = objects if "Object arrays" in str(error) else "it is damaged or cut off"
        raise UserError(f"{path}: {told}; expected {wanted}") from None
    if not found:
        told = f"it holds {some(there)}" if there else "it is empty"
        raise UserError(f"{path}: {told}; expected {wanted}")
    return found


def function(text: str, how: Reading) -> Arrays:
    """`package.module:function`: what it returns, called without arguments, or with `data-path`
    where it takes one.

    (inputs, labels, class names), or a mapping of `inputs`, `labels` and perhaps `class_names` and
    `clients`. A data frame's columns keep their names, and go by those of the Reading."""
    parts, columns, split = made(text, "dataset", lambda found: _called(text, found, how))
    found = checked(f"dataset {text!r}", *parts, how)
    return found._replace(feature_names=columns or None, split=split)


def columns_of(where: str, inputs: Any) -> tuple[str, ...]:
    """The names of a data frame's columns; none of an array, and of a frame that numbers them.
    Raises UserError for columns that are named otherwise, or twice."""
    found = getattr(inputs, "columns", ())
    names = tuple(found) if isinstance(found, Iterable) else ()
    if all(isinstance(name, Integral) for name in names):
        return ()
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise UserError(f"{where} has a column {wrong[0]!r}; expected texts as columns' names")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{where} has column {twice[0]!r} twice")
    return names


def with_columns(where: str, frame: Any, names: Sequence[str]) -> Any:
    """These columns of a data frame. Raises UserError for one that it lacks."""
    there = columns_of(where, frame)
    if missing := [name for name in names if name not in there]:
        raise UserError(f"{where} has no column {missing[0]!r}, which the model takes")
    return frame[list(names)]


def of_frame(where: str, frame: Any, how: Reading) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
    """The features of a data frame as those of a table, and their names. Raises UserError."""
    import pyarrow as pa

    table = pa.table(frame)
    names, _ = tables.feature_names_of(where, table, "", how)
    return tables.features_of(where, table, names, how), names


def as_array(where: str, given: Any) -> npt.NDArray[Any]:
    """An array, or a data frame's columns as numbers [n, d]. Raises UserError for a column that is
    none."""
    if hasattr(given, "toarray") and hasattr(given, "nnz"):
        raise UserError(f"{where}: inputs is a sparse matrix: give its .toarray()")
    names = [] if isinstance(given, np.ndarray) else getattr(given, "columns", [])
    if not isinstance(names, Iterable) or not (names := [*names]):
        if isinstance(given, list | tuple) and (told := _ragged(given)):
            raise UserError(f"{where}: {told}")
        return np.asarray(given)
    by_place = getattr(given, "iloc", None)  # of pandas, where a number may name two columns
    columns = [
        np.asarray(given[name] if by_place is None else by_place[:, i])
        for i, name in enumerate(names)
    ]
    if all(column.dtype.kind in "iuf" for column in columns):
        whole = np.asarray(given)
        if whole.dtype.kind in "iuf":
            return whole
    found = [_numbers(where, name, column) for name, column in zip(names, columns, strict=True)]
    return np.stack(found, 1)


def names_of(where: str, given: Any) -> list[str] | None:
    """Class names in the order of their numbers from 0, where any are given: in that order, or by
    number, or with their numbers. Raises UserError for what has no order, and what is no name."""
    if given is None:
        return None
    where = f"{where}: class_names"
    if isinstance(given, Mapping):
        by_name = all(isinstance(number, Integral) for number in given.values())
        pairs = ((number, name) for name, number in given.items()) if by_name else given.items()
        known = {str(number): name for number, name in pairs}
        if {*known} != {*map(str, range(len(given)))}:
            raise UserError(f"{where} numbers {some([*known])}; expected 0 to {len(given) - 1}")
        given = [known[str(i)] for i in range(len(given))]
    ordered = isinstance(given, Iterable) and not isinstance(given, str | bytes | Set)
    if not ordered or getattr(given, "ndim", 1) != 1:
        shape = f" {[*given.shape]}" if hasattr(given, "shape") else ""
        raise UserError(f"{where} is {kind(given)}{shape}; expected a list of names in their order")
    return [_name(where, i, name) for i, name in enumerate(given)]


def _name(where: str, i: int, name: Any) -> str:
    """A name as text. Raises UserError for what is none."""
    if not isinstance(name, str | bytes | Real | np.bool_) or name != name:
        raise UserError(f"{where}[{i}] is {name!r}; expected a name")
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)


def _ragged(rows: Sequence[Any]) -> str:
    """What is wrong of rows of lists that have not the same length; empty: nothing."""
    lengths = {len(row) if hasattr(row, "__len__") else 1 for row in rows}
    if len(lengths) < 2 or isinstance(rows[0], str | bytes | Mapping):
        return ""
    return f"its rows have {min(lengths)} to {max(lengths)} numbers; expected the same in all"


def _numbers(where: str, name: object, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A data frame's column as numbers [n]. Raises UserError for what is none."""
    told = "and features are numbers: turn it into numbers, or leave it out"
    if column.dtype.kind == "b":
        return column.astype(np.int8)
    if column.dtype.kind == "O":
        values = column.tolist()
        for i, value in enumerate(values):
            if not isinstance(value, Real | Decimal | np.bool_):
                raise UserError(f"{where}: column {name!r} has {kind(value)} at index {i}, {told}")
        return np.asarray(values, np.float64)
    if column.dtype.kind not in "iuf":
        raise UserError(f"{where}: column {name!r} holds {column.dtype}, {told}")
    return column


def _as_keys(where: str, given: Any, wanted: str) -> npt.NDArray[Any]:
    """Labels or owners as an array: objects as text or integers. Raises UserError for an object
    that is none."""
    array = np.asarray(given)
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "backslashreplace")
    if array.dtype.kind != "O":
        return array
    values = array.ravel().tolist()
    for i, value in enumerate(values):
        if not isinstance(value, str | Integral):
            raise UserError(f"{where} has {kind(value)} at index {i}; expected {wanted}")
    if all(isinstance(value, str) for value in values):
        return array.astype(np.str_)
    if any(isinstance(value, str | bool) for value in values):
        return array
    try:
        return array.astype(np.int64)
    except OverflowError:
        raise UserError(f"{where} has a number beyond 64 bits; expected {wanted}") from None


_Parts = tuple[npt.NDArray[Any], npt.NDArray[Any], list[str] | None, npt.NDArray[Any] | None]


def _called(
    text: str, found: Any, how: Reading
) -> tuple[_Parts, tuple[str, ...], npt.NDArray[Any] | None]:
    """Inputs, labels, class names and owners of what a user's function returns, the names of the
    inputs' columns, and what divides samples."""
    takes_path = bool(inspect.signature(found).parameters)
    if how.data_path and not takes_path:
        raise UserError(
            f"data-path is {how.data_path!r}, and dataset {text!r} takes no argument: leave it out,"
            " or give the function one"
        )
    given = found(how.data_path) if takes_path else found()
    if isinstance(given, tuple) and len(given) in (2, 3):
        given = dict(zip(("inputs", "labels", "class_names"), given, strict=False))
    if not isinstance(given, Mapping) or not {"inputs", "labels"} <= set(given) <= {
        "inputs",
        "labels",
        "class_names",
        "clients",
        *([how.split_column] if how.split_column else []),
    }:
        what = (
            f"a dict of {', '.join(map(str, given))}" if isinstance(given, Mapping) else kind(given)
        )
        what += f" of {len(given)}" if isinstance(given, tuple) else ""
        wanted = (
            "(inputs, labels), (inputs, labels, class names), or a dict of inputs, labels and"
            " perhaps class_names and clients"
        )
        raise UserError(f"dataset {text!r}: it returned {what}, expected {wanted}")
    where, inputs = f"dataset {text!r}", given["inputs"]
    columns = columns_of(where, inputs)
    if columns and not how.plain:
        inputs, columns = of_frame(where, inputs, how)
    elif columns and how.feature_names:
        inputs, columns = with_columns(where, inputs, how.feature_names), how.feature_names
    elif columns and how.drop:
        with_columns(where, inputs, how.drop)
        columns = tuple(name for name in columns if name not in how.drop)
        inputs = with_columns(where, inputs, columns)
    names, owners = given.get("class_names"), given.get("clients")
    parts = (
        as_array(where, inputs),
        _as_keys(f"{where}: labels", given["labels"], "integers"),
        names_of(where, names),
        None if owners is None else _as_keys(f"{where}: clients", owners, "integers or text"),
    )
    split = _split(where, given, how, len(parts[1])) if how.split_column else None
    return parts, columns, split


def checked(
    where: str,
    inputs: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    names: list[str] | None,
    owners: npt.NDArray[Any] | None,
    how: Reading,
    *,
    called: str = "inputs",
) -> Arrays:
    """The arrays as readers return them. Raises UserError for shapes, types and values that are
    none of a dataset."""
    found, what = _as_inputs(inputs), f"{called} is {inputs.dtype} {list(inputs.shape)}"
    if inputs.dtype.kind == "O" and not inputs.ndim:
        what = f"{called} is {kind(inputs.item())}"
    told = f"labels {labels.dtype} {list(labels.shape)}"
    if found is None:
        if inputs.dtype.kind == "O" and inputs.ndim == 1 and (odd := _ragged(inputs.tolist())):
            raise UserError(f"{where}: {odd}")
        forms = f"{', '.join(_FORMS[:-1])} or {_FORMS[-1]}"
        raise UserError(f"{where}: {what}, {told}; expected {forms}, and integers [n]")
    if labels.shape != inputs.shape[:1] or labels.dtype.kind not in "iu":
        raise UserError(f"{where}: {what}, {told}; {_mend(labels, len(inputs))}")
    form = kinds.of_inputs(found)
    if not len(labels):
        raise UserError(f"{where}: it has no {form.unit}")
    check_labels(where, labels, names, how)
    if owners is not None and (owners.shape != labels.shape or owners.dtype.kind not in "iuU"):
        raise UserError(
            f"{where}: clients is {owners.dtype} {list(owners.shape)}; expected integers or"
            " text [n]"
        )
    check_finite(where, found, missing=how.fills)
    columns = ((f"{form.by} {i}", inputs[:, i]) for i in range(inputs.shape[1]))
    return Arrays(
        found,
        labels.astype(np.int64),
        names or [str(i) for i in range(int(labels.max()) + 1)],
        owners,
        notes=tuple(coarse(columns)) if np.issubdtype(found.dtype, np.floating) else (),
    )


def _mend(labels: npt.NDArray[Any], n: int) -> str:
    """What is to be done with labels that are not integers [n]."""
    wanted = f"expected integers, one for each of the {n} inputs"
    if labels.ndim == 2 and len(labels) == n:
        one_hot = labels.dtype.kind in "biuf" and bool(np.all(np.sum(labels != 0, axis=1) == 1))
        of = "of one-hot labels labels.argmax(1)" if one_hot else SEVERAL
        return f"{wanted}: of one column take labels[:, 0], {of}"
    if labels.shape == (n,) and labels.dtype.kind == "f":
        return f"{wanted}: {CLASSIFY}"
    if labels.shape == (n,) and labels.dtype.kind in "US":
        return f"{wanted}: number the classes from 0, and name them in `class_names`"
    return wanted


def check_labels(
    where: str, labels: npt.NDArray[Any], names: list[str] | None, how: Reading
) -> None:
    """Raises UserError for labels [n], n ≥ 1, that are none of these classes, and where there is
    but one."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= _MOST_CLASSES:
        raise UserError(
            f"{where}: labels go from {low} to {high}; allowed: 0 to {_MOST_CLASSES - 1}"
        )
    if names is not None and high >= len(names):
        raise UserError(
            f"{where}: labels go up to {high}, and class_names names 0 to {len(names) - 1}"
        )
    if names is not None and len(set(names)) < len(names):
        raise UserError(
            f"{where}: class_names has {next(n for n in names if names.count(n) > 1)!r} twice"
        )
    if len(names or {low, high}) < 2 and not how.one_class:
        raise UserError(f"{where}: all labels are {low}; expected at least two classes")


def check_finite(where: str, inputs: Inputs, *, missing: bool = False) -> None:
    """Raises UserError if a float is missing, unless that is allowed, infinite or too large: its
    sample, counted from 0."""
    if not np.issubdtype(inputs.dtype, np.floating):
        return
    together = max(1, _TOGETHER // max(1, inputs[:1].size))
    for start in range(0, len(inputs), together):
        some_of = inputs[start : start + together]
        wrong = np.argwhere(~(np.abs(some_of) <= LARGEST) & ~(missing & np.isnan(some_of)))
        if len(wrong):
            place = [start + int(wrong[0][0]), *map(int, wrong[0][1:])]
            raise UserError(
                f"{where}: inputs{place} is {inputs[tuple(place)]}; expected finite numbers below"
                " 3e38"
            )


def _as_inputs(given: npt.NDArray[Any]) -> Inputs | None:
    """As a dataset holds them, bytes in three dimensions being images; None for what is of no
    kind."""
    if 0 in given.shape[1:]:
        return None
    found = (kind.taken(given) for kind in KINDS)
    return next((inputs for inputs in found if inputs is not None), None)
