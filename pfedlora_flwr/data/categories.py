"""Columns of text as features (`data.categories=one-hot`): COLUMN=VALUE is 1 in the rows that have
this value, and 0 in others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.cells import is_text
from pfedlora_flwr.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

_MOST = 100
"""Values of a column, above which it holds names or notes."""


def is_category(kind: pa.DataType) -> bool:
    """Whether a column of this type holds categories."""
    from pyarrow import types

    return is_text(kind.value_type if types.is_dictionary(kind) else kind)


def expanded(where: str, table: pa.Table, names: Iterable[str]) -> Iterator[str]:
    """The names of features: of a column of text one for each of its values, sorted. Raises
    UserError for a column with too many."""
    for name in names:
        if not _has(table, name):
            yield name
            continue
        values = sorted({*filter(None, texts_in(table, name))})
        if len(values) > _MOST:
            raise UserError(
                f"{where}: column {name!r} has {len(values)} different texts, and"
                f" data.categories=one-hot takes up to {_MOST}: leave it out by data.drop, or name"
                " values by data.features"
            )
        yield from (f"{name}={value}" for value in values)


def base_of(table: pa.Table, name: str) -> str | None:
    """The column of text that the feature COLUMN=VALUE is of; None for another name."""
    ends = (i for i, letter in enumerate(name) if letter == "=")
    return next((name[:i] for i in ends if _has(table, name[:i])), None)


def feature(texts: Iterable[str | None], value: str) -> npt.NDArray[Any]:
    """The feature COLUMN=VALUE of a column's texts, [n]; NaN where the text is missing."""
    return np.array([float(text == value) if text else np.nan for text in texts])


def _has(table: pa.Table, name: str) -> bool:
    """Whether it has one such column of categories."""
    places = table.schema.get_all_field_indices(name)
    return len(places) == 1 and is_category(table.schema.field(places[0]).type)


def texts_in(table: pa.Table, column: str) -> list[str | None]:
    """A column's texts, [n]; none, or an empty one, is missing."""
    return [text.strip() if text else None for text in table.column(column).to_pylist()]
