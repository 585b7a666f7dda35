"""The contract of a dataset: the fields of its registry entry, how it is read, and what its reader
returns."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.errors import UserError, first_line, permissions
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.training.kinds import IMAGES, Shape, read_shape

SIZE = 32
"""Height and width of the images of datasets that come in one size."""
CLASSIFY = "methods here classify, and predict no numbers (regression)"
"""Said where labels are, or may be, a number to predict."""
SEVERAL = "a row has one class here, not several (multi-label)"
SPLITS = (
    dict.fromkeys(("train", "training"), 0)
    | dict.fromkeys(("validation", "valid", "val", "dev"), 1)
    | dict.fromkeys(("test", "testing", "eval"), 2)
)
"""What datasets call their parts."""
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
"""What `data.sep` may be, and what stands between a CSV's columns then."""
LARGEST = float(np.finfo(np.float32).max)
"""Of a number in series and vectors, by its size: 3.4e38."""
_OTHERWISE = "features", "class_map"
Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
"""Numbers as they were given: float32 where this type holds each of them exactly, else float64."""
Indices = npt.NDArray[np.int64]
Inputs = npt.NDArray[np.uint8] | npt.NDArray[np.int64] | Floats
"""Images uint8 [n, height, width, 1 or 3], series [n, channels, time], vectors [n, features] or
texts uint8 [n, bytes] (and, as a model takes them, int64 [n, tokens]).

Series and vectors become float32 for the models only after they are centred and scaled."""


class Arrays(NamedTuple):
    """What a reader returns.

    labels: [n], from 0. class_names: of all classes, in order. owners: who each sample belongs to,
    as text or numbers [n], where that is known. resized: how many images were brought to another
    size. feature_names: of vectors, where they have any; of texts their column's. notes: what the
    reader left out or warns of, a line each. original: SHA-256 of the files or arrays that the
    inputs were decoded or resized from, as another machine's software does otherwise; empty: they
    are as they came. split: the values of `split_column`, or the official parts' names [n]; None:
    there are none."""

    inputs: Inputs
    labels: npt.NDArray[np.int64]
    class_names: list[str]
    owners: npt.NDArray[Any] | None = None
    resized: int = 0
    feature_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    original: str = ""
    split: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Reading:
    """How a dataset is read, besides its name.

    data_path: the folder of its files, where it has any. size: images' height and width; None: as
    they are. grey: whether image files give one channel, else three. label_column, input_column,
    client_column: of what has columns; None: found, or none.
    class_names: of the labels of what has columns, in order; empty: those that are there, sorted.
    feature_names: a table's columns that are taken, in this order; empty: all of numbers but
    those of `drop`.
    one_class: whether all samples may be of one where nothing names the others. subfolders: whether
    images in folders within a class's folder are its own. text_column: of texts, of which
    max_tokens tokens are taken; None: inputs are no texts. sep, decimal: of a CSV's columns and
    numbers, by their names. missing: refuse, or what fills a missing value of a feature.
    categories: whether texts are left out (drop) or features (one-hot). spelling: the class that a
    label means, by label. passed_over: a column that is neither found as the label nor as the
    inputs, if it is there. split_column: of groups, times or parts, which is no feature."""

    data_path: str = ""
    size: tuple[int, int] | None = None
    grey: bool = False
    label_column: str | None = None
    input_column: str | None = None
    client_column: str | None = None
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    one_class: bool = False
    subfolders: bool = False
    sep: str = "comma"
    decimal: str = "point"
    text_column: str | None = None
    max_tokens: int = 0
    missing: str = "refuse"
    categories: str = "drop"
    spelling: tuple[tuple[str, str], ...] = ()
    passed_over: str | None = None
    split_column: str | None = None

    @property
    def fills(self) -> bool:
        """Whether a value of a feature may be missing."""
        return self.missing != "refuse"

    @property
    def plain(self) -> bool:
        """Whether features are columns of numbers without gaps."""
        return not self.fills and self.categories == "drop"

    def respelt(self, names: list[str], numbers: Indices) -> tuple[list[str], Indices]:
        """The classes that these labels mean, sorted where one is spelt otherwise, and each
        sample's, by those of its labels. Several labels may mean one."""
        spelt = dict(self.spelling)
        meant = [spelt.get(name, name) for name in names]
        if meant == [*names]:
            return names, numbers
        found = sorted({*meant})
        return found, np.array([found.index(name) for name in meant])[numbers]

    @classmethod
    def of(cls, e: Experiment, data_path: str) -> Reading:
        """As the Experiment's keys say, of files in `data_path` (the key of that name)."""
        if e.data.class_map:
            permissions.check_file("data.class-map", e.data.class_map, permissions.DATA)
        kind, wanted = read_shape(e.input_shape) if e.input_shape else (None, ())
        channels, height, width = wanted if kind == IMAGES else (None, e.image_size, e.image_size)
        return cls(
            data_path=data_path,
            size=(height, width) if height and width else None,
            grey=channels == 1,
            **{f.name: getattr(e.data, f.name) for f in fields(e.data) if f.name not in _OTHERWISE}
            | {
                "spelling": spelling_of(e.data.class_map) if e.data.class_map else (),
                "feature_names": tuple(e.data.features or ()),
                "drop": tuple(e.data.drop or ()),
                "max_tokens": e.data.max_tokens if e.data.text_column else 0,
                "class_names": tuple(e.data.class_names or ()),
                "split_column": e.split.column,
            },
        )


def spelling_of(file: str) -> tuple[tuple[str, str], ...]:
    """What each label means, as `data.class-map` says. Raises UserError for a file that is none."""
    path = Path(file).expanduser()
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else first_line(str(error))
        raise UserError(f"class map {path}: {reason}") from None
    if not rows or any({*row} != {"label", "class"} or not all(row.values()) for row in rows):
        raise UserError(f"class map {path}: expected a CSV of two columns, label and class")
    found = {row["label"]: row["class"] for row in rows}
    if len(found) < len(rows):
        raise UserError(f"class map {path}: it has a label twice")
    if also := [name for name in found.values() if found.get(name, name) != name]:
        raise UserError(f"class map {path}: {also[0]!r} is a class, and a label of another one")
    return tuple(sorted(found.items()))


@dataclass(frozen=True)
class Source:
    """One dataset, or a kind of them.

    name: in the configuration; one that ends in ":" takes a text after it.
    read: the arrays, from the text after the name and the Reading. Raises UserError if files are
    missing or broken.
    title: for people; empty: the name in the configuration.
    classes: their number, where the name tells it.
    samples: their number, where the name tells it, or what finds it in the text after the name.
    shape: of an input, where the name tells it.
    target: the accuracy that `to_target` counts up to, unless the Experiment says another.
    path: whether the text after the name is a path, or what tells; what is none is then fetched
    from outside.
    files: what lies in `data-path` or, without one, is downloaded; any of these will do. Empty: it
    takes no `data-path`.
    columns: the keys `data.…` that it takes.
    whole: whether images of 3 × 32 × 32 are normalised by all samples; else training samples alone
    count.
    kept: whether it is kept decoded on disk.
    """

    name: str
    read: Callable[[str, Reading], Arrays]
    title: str = ""
    classes: int | None = None
    samples: int | Callable[[str], int] | None = None
    shape: Shape | None = None
    target: float = 0.9
    path: bool | Callable[[str], bool] = False
    files: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    whole: bool = False
    kept: bool = True

    def text(self, name: str) -> str:
        """What stands after this source's own name in a dataset's full name."""
        return name.removeprefix(self.name)

    def is_path(self, text: str) -> bool:
        """Whether the text after the name is a path on this machine."""
        return self.path(text) if callable(self.path) else self.path
