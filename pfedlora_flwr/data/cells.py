"""What a table's names and cells say of a file that was read wrongly: numbers written otherwise,
rows within a cell, a first row taken for the header."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pfedlora_flwr.data.source import SEPARATORS, Reading
from pfedlora_flwr.errors import UserError, permissions, some

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBER = r"^\s*[-+]?(\d+{0}?\d*|{0}\d+)([eE][-+]?\d+)?\s*$"
"""A number in text, with its decimal mark."""
_MARKS = {"point": "[.]", "comma": ","}


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds texts."""
    from pyarrow import types

    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def check_numbers(where: str, name: str, column: pa.ChunkedArray, decimal: str) -> None:
    """Raises UserError for a column of texts of which most are numbers: the first cell that is
    none, or is one by another decimal mark than `decimal`."""
    from pyarrow import compute

    if not is_text(column.type):
        return
    text = column.cast("string").combine_chunks()
    matches = (
        compute.match_substring_regex(text, _NUMBER.format(mark)).fill_null(False)
        for mark in _MARKS.values()
    )
    point, comma = (np.asarray(found) for found in matches)
    own, other = (point, comma & ~point) if decimal == "point" else (comma, point & ~comma)
    if 2 * (own | other).sum() <= len(text):
        return
    if other.any():
        [mend] = {*_MARKS} - {decimal}
        row, told = int(other.argmax()), f"set data.decimal={mend} if that is its decimal mark"
    elif own.all():
        return
    else:
        there = np.asarray(text.is_valid())
        row, told = int((there & ~own).argmax()), "mend it, or leave the column out by data.drop"
    value = repr(text[row].as_py()) if permissions.own_machine() else "a text"
    place = f"column {name!r} has {value} in row {row + 1}, and numbers elsewhere"
    raise UserError(f"{where}: {place}: {told}")


def swallowed(table: pa.Table, labels: Collection[str], how: Reading) -> Iterator[str]:
    """A note on each column in which a value holds whole lines of the file, as after a quote that
    nothing closes. labels: of the classes: of a column of texts a line counts if it has one."""
    mark = SEPARATORS[how.sep]
    for name, column in zip(table.column_names, table.columns, strict=True):
        for row, value in enumerate(column.to_pylist() if is_text(column.type) else (), 1):
            lines = (value or "").split("\n")
            if name == how.text_column and not any(
                mark in line and {*line.split(mark)} & {*labels} for line in lines[:-1]
            ):
                continue
            if len(lines) > 1:
                told = "if a quote stands alone in the file, rows are lost in it"
                yield f"column {name!r} has a value of {len(lines)} lines in row {row}: {told}"
                break


def headless(names: Sequence[str]) -> str:
    """What columns tell of which most are called by numbers that do not count, or measure, in even
    steps; empty of others."""
    numbers = [name for name in names if re.match(_NUMBER.format("[.]"), name)]
    values = [float(name) for name in numbers]
    steps = np.diff(values)
    counts = values[:1] in ([0], [1]) and np.all(steps == 1)
    even = len(steps) > 1 and steps[0] and np.allclose(steps, steps[0])
    if 2 * len(numbers) <= len(names) or counts or even:
        return ""
    return (
        f"columns are called by numbers ({some(numbers)}): if the file has no header, its"
        " first row is lost in them"
    )
