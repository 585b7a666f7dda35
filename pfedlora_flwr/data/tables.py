"""Tables from a CSV or Parquet file: one column is the label, one may name a row's owner, other
numeric columns are features, or one column is text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.categories import base_of, expanded, feature, is_category, texts_in
from pfedlora_flwr.data.cells import check_numbers, headless, is_text, swallowed
from pfedlora_flwr.data.normalisation import coarse
from pfedlora_flwr.data.source import (
    CLASSIFY,
    LARGEST,
    SEPARATORS,
    SEVERAL,
    Arrays,
    Inputs,
    Reading,
)
from pfedlora_flwr.errors import UserError, apart, counted, first_line, kind, some
from pfedlora_flwr.files import BEGIN, disguised, from_json
from pfedlora_flwr.training.kinds import BYTES_A_TOKEN

if TYPE_CHECKING:
    import pyarrow as pa

LABEL = "label"
"""The labels' column, unless the Reading names one."""
DECIMALS = {"point": ".", "comma": ","}
_ROWS = 20
"""From so many on, rows in which no whole number repeats are a sign."""
_DIGITS = 10
"""Up to so many, whole numbers are often names of classes."""
_TYPE = 40
"""Characters of a column's type that a message has."""
_PANDAS_INDEX = "__index_level_"
"""How the names of the columns begin in which pandas keeps a row index in Parquet."""
_NAMELESS = "", "Unnamed: 0"
"""A row index that pandas wrote to a CSV, and what its readers call it."""
_EXCELS_LINE = re.compile(rb"\A(\xef\xbb\xbf)?sep=.\r?\n", re.IGNORECASE)
"""Which says the separator to Excel, and is none of the table."""
_FILL = ", or let data.missing=mean do it"
_NOT_UTF8 = "{}: its text is not UTF-8; save it anew with this encoding"


def csv(text: str, how: Reading) -> Arrays:
    """`csv:FILE`: a header, and rows separated by commas."""
    return _arrays(Path(text).expanduser(), "csv", how)


def parquet(text: str, how: Reading) -> Arrays:
    """`parquet:FILE`."""
    return _arrays(Path(text).expanduser(), "parquet", how)


def read(path: Path, form: str, how: Reading) -> pa.Table:
    """A file of the form csv or parquet, each row a sample. Raises UserError if there is none,
    or it has no rows."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    text = b""
    try:
        if form == "parquet":
            table = parquet.read_table(path)
        else:
            with pa.input_stream(str(path)) as stream:  # which unpacks .gz
                text = stream.read()
            _check_text(path, text)
            text = _EXCELS_LINE.sub(b"", text)
            # a column's type is that of all its values
            whole = csv.ReadOptions(block_size=min(len(text) + 1, 2**31 - 1))
            marks = csv.ParseOptions(
                delimiter=SEPARATORS[how.sep], newlines_in_values=how.text_column is not None
            )
            numbers = csv.ConvertOptions(decimal_point=DECIMALS[how.decimal])
            table = csv.read_csv(pa.BufferReader(text), whole, marks, numbers)
            if codes := _numbered(table, how):
                # 007 and 7 are two owners
                plain = csv.ConvertOptions(
                    column_types=dict.fromkeys(codes, pa.string()),
                    include_columns=codes,
                    strings_can_be_null=True,
                )
                table = _as_written(table, csv.read_csv(pa.BufferReader(text), whole, marks, plain))
        table.column_names  # noqa: B018 decodes them
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except UserError:
        raise
    except UnicodeDecodeError:
        raise UserError(_NOT_UTF8.format(path)) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        # without the row itself, which may be anybody's
        said = re.sub(r"(got \d+): .*", r"\1", first_line(str(error)))
        if path.is_file() and form != "csv":
            with path.open("rb") as stream:
                said = disguised(stream.read(BEGIN)) or said
        comment = form == "csv" and "Expected" in said and text.startswith((b"#", b"%"))
        hint = "; remove the comment from its first line, which names the columns"
        other = _other_separator(text, how) if form == "csv" and not comment else ""
        raise UserError(
            f"{path}: no readable table ({said[:160]}){hint if comment else other}"
        ) from None
    # which is what it makes of text that is not UTF-8
    if form == "csv" and any(map(pa.types.is_binary, table.schema.types)):
        raise UserError(_NOT_UTF8.format(path))
    if not len(table):
        raise UserError(f"{path}: it has no rows")
    if form == "csv" and len(table.column_names) == 1:
        [name] = table.column_names
        for sep, mark in SEPARATORS.items():
            if mark in name:
                told = f"its only column is {name[:_TYPE]!r}"
                raise UserError(f"{path}: {told}: is this the separator? set data.sep={sep}")
    return table


def json_lines(where: str, text: bytes) -> pa.Table:
    """Rows of JSON, one object a line. Raises UserError for what is none."""
    import pyarrow as pa
    from pyarrow import json as reader

    try:
        if not text.strip():
            raise ValueError("it is empty")
        return reader.read_json(pa.BufferReader(text))
    except (pa.ArrowException, ValueError) as error:
        told = f"{where}: no JSON objects, one a line"
        raise UserError(f"{told} ({first_line(str(error))})") from None


def _numbered(table: pa.Table, how: Reading) -> list[str]:
    """The columns of labels and owners that hold numbers."""
    from pyarrow import types

    wanted = (how.label_column or LABEL, how.client_column, how.split_column)
    return [
        field.name
        for field in table.schema
        if field.name in wanted
        and (types.is_integer(field.type) or types.is_floating(field.type))
        and table.column_names.count(field.name) == 1  # two are refused later
    ]


def _as_written(table: pa.Table, texts: pa.Table) -> pa.Table:
    """The table, with those columns of `texts` in which a number begins with a zero; and as
    integers those in which +1 was taken for a float."""
    from pyarrow import compute, types

    for name in texts.column_names:
        column = compute.utf8_trim_whitespace(texts[name])
        if compute.any(compute.match_substring_regex(column, r"^[-+]?0\d")).as_py():
            pass
        elif (
            types.is_floating(table[name].type)
            and compute.all(compute.match_substring_regex(column, r"^[-+]?\d{1,18}$")).as_py()
        ):
            column = compute.replace_substring(column, "+", "").cast("int64")
        else:
            continue
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _other_separator(text: bytes, how: Reading) -> str:
    """What to set where the first line lacks the Reading's separator and has another; empty: that
    is not so."""
    first = text.partition(b"\n")[0].decode(errors="replace")
    found = [sep for sep, mark in SEPARATORS.items() if mark in first]
    if not found or how.sep in found:
        return ""
    return f"; its first line has another separator: set data.sep={found[0]}"


def _check_text(path: Path, text: bytes) -> None:
    """Raises UserError for a CSV's bytes that are no text in UTF-8 on the first look."""
    if text.startswith(b"\x1f\x8b"):
        raise UserError(f"{path}: it is gzipped; call it {path.name}.gz")
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(_NOT_UTF8.format(path))
    if text and (told := disguised(text)):
        raise UserError(f"{path}: {told}; expected a CSV")


def feature_names_of(
    where: str, table: pa.Table, label: str, how: Reading, *, structs: str = ""
) -> tuple[tuple[str, ...], list[str]]:
    """The columns that are features: those of the Reading, or all of numbers but label and client;
    and a note that names the others.

    structs: what to say of columns that hold several values in each row, as those of images in
    Parquet do. Raises UserError if there are none."""
    from pyarrow import types

    if how.feature_names:
        names = how.feature_names
        return names if how.categories == "drop" else (*expanded(where, table, names),), []
    for name in how.drop:
        column_of(where, table, name, "data.drop")
    known = label, how.client_column, how.split_column, *how.drop
    index = [name for name in _index_of(table) if name not in known]
    there = [
        field
        for field in table.schema
        if field.name not in (*known, *index) and not field.name.startswith(_PANDAS_INDEX)
    ]
    if there and there[0].name in _NAMELESS:
        raise UserError(
            f"{where}: its first column has no name, as a row index has: write the table without"
            " (pandas: index=False), or name it"
        )
    others = [field for field in there if not _is_number(field.type)]
    hint = structs if any(types.is_struct(field.type) for field in others) else ""
    if how.categories == "drop" and any(is_category(field.type) for field in others):
        hint += "; data.categories=one-hot keeps categories"
    for field in others:
        check_numbers(where, field.name, table.column(field.name), how.decimal)
    if how.categories == "one-hot":
        others = [field for field in others if not is_category(field.type)]
    told = some([f"{field.name} ({str(field.type)[:_TYPE]})" for field in others])
    if len(others) == len(there):
        texts = f", and no numbers in {told}" if others else ""
        raise UserError(
            f"{where}: it has no columns of features beside"
            f" {' and '.join(filter(None, known[:3]))}{texts}{hint}"
        )
    columns = counted(len(others), "column")
    notes = [f"left out: {columns} of no numbers: {told}{hint}"] if others else []
    notes += [f"left out: the row index of pandas: {some(index)}"] if index else []
    names = tuple(field.name for field in there if field not in others)
    return names if how.categories == "drop" else (*expanded(where, table, names),), notes


def _index_of(table: pa.Table) -> list[str]:
    """The named columns that pandas says are its row index."""
    try:
        about = from_json((table.schema.metadata or {})[b"pandas"])
        names = [name for name in about["index_columns"] if isinstance(name, str)]
    except (KeyError, TypeError, ValueError):  # another program's
        return []
    return [n for n in names if n in table.column_names and not n.startswith(_PANDAS_INDEX)]


def features_of(
    where: str, table: pa.Table, names: Sequence[str], how: Reading, *, training: bool = True
) -> npt.NDArray[np.float64]:
    """These features, [n, d], NaN for what is missing, if that is allowed. Raises UserError, with
    the column, its row from 1 and, of a run's data, the key that helps, for what is no number."""
    keys, fill = ("its header, or data.features", _FILL) if training else ("its header", "")
    inputs, there = np.empty((len(table), len(names))), {*table.column_names}
    texts: dict[str, list[str | None]] = {}
    for i, name in enumerate(names):
        base = None if name in there else base_of(table, name)
        if base and how.categories == "one-hot":
            if base not in texts:
                texts[base] = texts_in(table, base)
            inputs[:, i] = feature(texts[base], name.removeprefix(f"{base}="))
            if not how.fills and len(gaps := np.flatnonzero(np.isnan(inputs[:, i]))):
                raise _missing(where, base, gaps[0] + 1, len(gaps), fill)
            continue
        column = column_of(where, table, name, keys)
        if not _is_number(column.type):
            check_numbers(where, name, column, how.decimal)
            told = f"column {name!r} holds {str(column.type)[:_TYPE]}, and features are numbers"
            number = "turn it into numbers, "
            if training and is_category(column.type):
                number += "by hand or by data.categories=one-hot, "
            raise UserError(f"{where}: {told}: {number}or leave it out")
        if not how.fills:
            check_there(where, name, column, fill)
        inputs[:, i] = column.to_numpy()
        outside = ~(np.abs(inputs[:, i]) <= LARGEST)
        if how.fills:
            outside &= ~np.isnan(inputs[:, i])
        if len(wrong := np.flatnonzero(outside)):
            value = column[int(wrong[0])].as_py()
            raise UserError(
                f"{where}: column {name!r} is {value} in row {wrong[0] + 1}; expected finite"
                " numbers below 3e38"
            )
    return inputs


def with_inputs(
    where: str,
    table: pa.Table,
    label: str,
    labels: npt.NDArray[np.int64],
    names: list[str],
    owners: npt.NDArray[Any] | None,
    how: Reading,
    *,
    structs: str = "",
) -> Arrays:
    """The column of texts as inputs, or those of features, with notes on the columns that are left
    out. structs: as `feature_names_of` has it."""
    if how.text_column:
        features: tuple[str, ...] = (how.text_column,)
        inputs: Inputs = texts_of(where, table, how.text_column, how.max_tokens)
        known = {how.text_column, how.label_column or LABEL, how.client_column, how.split_column}
        others = [name for name in table.column_names if name not in known]
        notes = [f"left out beside the texts: {some(others)}"] if others else []
    else:
        features, notes = feature_names_of(where, table, label, how, structs=structs)
        inputs = features_of(where, table, features, how)
        there = {*table.column_names}
        own = [name for name in features if name in there]
        notes += coarse((name, table.column(name).drop_null().to_numpy()) for name in own)
        notes += _suspicious(table, inputs, labels, features)
        counts = zip(features, np.isnan(inputs).sum(0).tolist(), strict=True)
        if lacking := [f"{name} ({count})" for name, count in counts if count]:
            notes.append(f"missing, filled by the {how.missing} of training: {some(lacking)}")
    if len(names) > _DIGITS and all(name.lstrip("-").isdecimal() for name in names):
        notes.append(
            f"label {label!r} has {len(names)} whole numbers, each a class: their order is not"
            " used; data.class-map makes a few classes of them"
        )
    found = Arrays(inputs, labels, names, owners, feature_names=features, notes=tuple(notes))
    return found._replace(split=split_values(where, table, how))


def _suspicious(
    table: pa.Table,
    inputs: npt.NDArray[np.float64],
    labels: npt.NDArray[np.int64],
    names: Sequence[str],
) -> Iterator[str]:
    """Notes on columns [n, d] that may be no features: whole numbers that never repeat, as those of
    rows or people do, and values that each have one label, as another target does."""
    from pyarrow import types

    numbers, telling = list[str](), list[str]()
    rows = len(labels)
    for name, column in zip(names, inputs.T, strict=True):
        values, of = np.unique(column, return_inverse=True)
        if len(values) == rows >= _ROWS and types.is_integer(table.schema.field(name).type):
            numbers.append(name)
        elif 1 < len(values) <= rows / 2:
            labelled = len(np.unique(np.stack([of, labels]), axis=1).T)
            telling += [name] if labelled == len(values) else []
    mend = "what is no feature is left out by data.drop"
    if numbers:
        told = some(numbers)
        yield f"whole numbers that never repeat, as those of rows do: {told}; {mend}"
    if telling:
        told = some(telling)
        yield f"each value has one label, as that of another target: {told}; {mend}"


def texts_of(where: str, table: pa.Table, name: str, tokens: int) -> npt.NDArray[np.uint8]:
    """The texts in a column as a dataset has them, uint8 [n, bytes]: their beginnings, of which a
    model takes so many tokens. Raises UserError for what is no text, and for an empty one."""
    from pyarrow import types

    column = column_of(where, table, name, "data.text-column")
    check_there(where, name, column)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not is_text(column.type):
        raise UserError(
            f"{where}: data.text-column is {name!r}, which holds {str(column.type)[:_TYPE]};"
            " expected text"
        )
    return as_bytes(f"{where}: column {name!r}", column.to_pylist(), tokens)


def as_bytes(where: str, texts: Sequence[str], tokens: int) -> npt.NDArray[np.uint8]:
    """Texts in UTF-8, [n, BYTES_A_TOKEN · tokens]. Raises UserError for an empty one."""
    size = BYTES_A_TOKEN * tokens
    found = np.zeros((len(texts), size), np.uint8)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"{where} has {kind(text)} in row {i + 1}; expected text")
        if not (told := text.strip().replace("\0", " ")):
            raise UserError(f"{where} has an empty text in row {i + 1}: fill or remove it")
        held = told.encode()[:size]
        found[i, : len(held)] = np.frombuffer(held, np.uint8)
    return found


def labels_of(
    where: str, name: str, column: pa.ChunkedArray, how: Reading
) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Labels [n], and the classes' names: those given, else the column's values, sorted. Raises
    UserError for a label that is no class."""
    found, classes = _keys(where, name, column), how.class_names
    values, codes = np.unique(found, return_inverse=True)
    texts = [str(value) for value in values]
    texts, codes = how.respelt(texts, codes)
    if set(texts) <= {"false", "true"}:  # True or TRUE in the file
        spelt = {name.casefold(): name for name in classes} | {name: name for name in classes}
        texts = [spelt.get(text, text) for text in texts]
    if unknown := [text for text in texts if text not in classes] if classes else []:
        raise UserError(
            f"{where}: column {name!r} has {some(unknown)}, and data.class-names"
            f" {some(apart(classes, unknown))}"
        )
    if len(classes or texts) < 2 and not how.one_class:
        raise UserError(f"{where}: all labels are {texts[0]}; expected at least two classes")
    if not classes:
        return codes.astype(np.int64), texts
    return np.array([classes.index(t) for t in texts])[codes], list(classes)


def owners_of(where: str, table: pa.Table, how: Reading) -> npt.NDArray[Any] | None:
    """Who owns each row [n], as text or integers; None without such a column."""
    name = how.client_column
    if name is None:
        return None
    return _keys(where, name, column_of(where, table, name, "data.client-column"))


def split_values(where: str, table: pa.Table, how: Reading) -> npt.NDArray[Any] | None:
    """What divides rows [n]: text or integers, times as microseconds; None without such a
    column."""
    import pyarrow as pa

    name = how.split_column
    if name is None:
        return None
    column = column_of(where, table, name, "split.column")
    check_there(where, name, column)
    if pa.types.is_temporal(column.type) and not pa.types.is_duration(column.type):
        whole = column.cast(pa.timestamp("us")) if not pa.types.is_time(column.type) else column
        return whole.cast(pa.int64()).to_numpy()
    return column.to_numpy() if pa.types.is_floating(column.type) else _keys(where, name, column)


def check_apart(where: str, label: str, how: Reading) -> None:
    """Raises UserError if one column is to be the label, and something else."""
    if label == how.split_column:
        raise UserError(f"{where}: column {label!r} is the label, and split.column, too: mend one")
    if label == how.client_column:
        raise UserError(
            f"{where}: column {label!r} is the label, and data.client-column, too: mend it, or"
            " data.label-column"
        )


def column_of(where: str, table: pa.Table, name: str, key: str) -> pa.ChunkedArray:
    """The one column of this name. Raises UserError if there is none, which `key` can mend, or
    there are several."""
    count = len(table.schema.get_all_field_indices(name))
    if count != 1:
        if count:
            there = f"{count} columns {name!r}"
        else:
            there = f"no column {name!r}, but {some(apart(table.column_names, [name]))}"
        told = headless(table.column_names)
        raise UserError(f"{where}: it has {there}; mend {key}{told and f'; {told}'}")
    return table.column(name)


def check_there(where: str, name: str, column: pa.ChunkedArray, fill: str = "") -> None:
    """Raises UserError if a value is missing; `fill` is said at its end."""
    if column.null_count:
        first = column.is_null().index(True).as_py() + 1
        raise _missing(where, name, first, column.null_count, fill)


def _arrays(path: Path, form: str, how: Reading) -> Arrays:
    table = read(path, form, how)
    where, label = str(path), how.label_column or LABEL
    check_apart(where, label, how)
    labels, names = labels_of(
        where, label, column_of(where, table, label, "data.label-column"), how
    )
    owners = owners_of(where, table, how)
    images = "; a folder of files with images is hf:PATH"
    made = with_inputs(where, table, label, labels, names, owners, how, structs=images)
    if form != "csv":
        return made
    told = *swallowed(table, names, how), headless(made.feature_names or ())
    return made._replace(notes=(*made.notes, *filter(None, told)))


def _is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type can be a feature; one without any value can, and is then
    refused for what is missing."""
    from pyarrow import types

    names = ("integer", "floating", "boolean", "decimal", "null")
    return any(getattr(types, f"is_{name}")(kind) for name in names)


def _keys(where: str, name: str, column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Integers, or text [n]. Raises UserError for what is neither, and where a value is missing or
    empty."""
    import pyarrow as pa

    check_there(where, name, column)
    if pa.types.is_floating(column.type):
        with suppress(pa.ArrowInvalid):  # integers, as pandas writes them where one was missing
            column = column.cast(pa.int64())
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_integer(kind):
        try:
            return column.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:  # from 2^63
            return np.asarray(column.cast(pa.string()).to_pylist(), np.str_)
    if not (is_text(kind) or pa.types.is_boolean(kind)):
        number = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        raise UserError(
            f"{where}: column {name!r} holds {str(column.type)[:_TYPE]}; expected text or integers"
            + (f": {CLASSIFY}" if number else f": {SEVERAL}" if pa.types.is_nested(kind) else "")
        )
    found = np.asarray(column.cast(pa.string()).to_pylist(), np.str_)
    if len(empty := np.flatnonzero(found == "")):
        raise _missing(where, name, empty[0] + 1, len(empty))
    return found


def _missing(where: str, name: str, row: int, count: int, fill: str = "") -> UserError:
    """The error of a column in which values are missing, the first one in `row`, from 1."""
    told = f"column {name!r} has no value in row {row}, and {count} are missing"
    return UserError(f"{where}: {told}: fill or remove them{fill}")
