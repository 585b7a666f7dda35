"""The contract of a dataset: what its entry in the registry tells, how it is to be read, and what its reader returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment

SIZE = 32
"""Height and width of the images of datasets that come in one size."""
_SMALLEST = 8
_MOST_NUMBERS = 100_000_000
"""In one input."""
Inputs = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
"""Images uint8 [n, height, width, 1 or 3], series float32 [n, channels, time] or vectors float32 [n, features]."""
Shape = tuple[int, ...]
"""Of one input as a model takes it: (channels, height, width), (channels, time) or (features,)."""


class Arrays(NamedTuple):
    """What a reader returns.

    labels: [n], from 0. class_names: of all classes, in order. owners: who each sample belongs to, as text or numbers [n], where that is
    known. resized: how many images were brought to another size. feature_names: of vectors, where they have any.
    """

    inputs: Inputs
    labels: npt.NDArray[np.int64]
    class_names: list[str]
    owners: npt.NDArray[Any] | None = None
    resized: int = 0
    feature_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Reading:
    """How a dataset is read, besides its name.

    data_path: the folder of its files, where it has any. size: images' height and width; None: as they are. grey: whether image files
    give one channel, else three. label_column, input_column, client_column: of what has columns; None: found, or none.
    class_names: of the labels of what has columns, in order; empty: those that are there, sorted. feature_names: a table's columns
    that are taken, in this order; empty: all of numbers. one_class: whether all samples may be of one where nothing names the others.
    """

    data_path: str = ""
    size: tuple[int, int] | None = None
    grey: bool = False
    label_column: str | None = None
    input_column: str | None = None
    client_column: str | None = None
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    one_class: bool = False

    @classmethod
    def of(cls, e: Experiment) -> Reading:
        """As the Experiment's keys say."""
        wanted = parse_shape(e.input_shape) if e.input_shape else ()
        _, height, width = wanted if len(wanted) == 3 else (0, e.image_size, e.image_size)
        return cls(
            data_path=e.data_path,
            size=(height, width) if height and width else None,
            grey=len(wanted) == 3 and wanted[0] == 1,
            label_column=e.data_label_column,
            input_column=e.data_input_column,
            client_column=e.data_client_column,
            class_names=tuple(name.strip() for name in e.data_class_names.split(","))
            if e.data_class_names
            else (),
        )


@dataclass(frozen=True)
class Source:
    """One dataset, or a kind of them.

    name: in the configuration; one that ends in ":" takes a text after it.
    read: the arrays, from the text after the name and the Reading. Raises UserError where files are missing or broken.
    title: for people; empty: the name in the configuration.
    classes: their number, where the name tells it.
    samples: their number, where the name tells it, or what finds it in the text after the name.
    shape: of an input, where the name tells it.
    target: the accuracy that `to_target` counts up to, unless the Experiment says another.
    path: whether the text after the name is a path, or what tells; what is none is then fetched from outside.
    files: what lies in `data-path` or, without one, is downloaded; any of these will do. Empty: it takes no `data-path`.
    columns: the keys `data.…` that it takes.
    whole: whether images of 3 × 32 × 32 are normalised by all samples; else training samples alone count.
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


def parse_shape(text: str) -> Shape:
    """The shape in the key `input-shape`: 3x64x64, 6x128 or 13. Raises UserError."""
    words = text.split("x")
    shape = (
        tuple(int(word) for word in words)
        if all(word.isascii() and word.isdigit() and len(word) < 10 for word in words)
        else ()
    )
    image = len(shape) != 3 or (shape[0] in (1, 3) and min(shape[1:]) >= _SMALLEST)
    if not 1 <= len(shape) <= 3 or min(shape) < 1 or math.prod(shape) > _MOST_NUMBERS or not image:
        kinds = f"CHANNELSxHEIGHTxWIDTH of images (1 or 3 channels, from {_SMALLEST} pixels), CHANNELSxTIME of series, FEATURES of vectors"
        raise UserError(f"input-shape is {text[:40]!r}; allowed: auto, or {kinds}")
    return shape


def shape_of(inputs: Inputs) -> Shape:
    """The shape of one of these inputs, as a model takes it."""
    rest = inputs.shape[1:]
    return (rest[2], *rest[:2]) if len(rest) == 3 else rest


def in_words(shape: Shape) -> str:
    """As the key `input-shape` has it."""
    return "x".join(map(str, shape))


class Shaped(Protocol):
    """What says of which kind and shape inputs are: a dataset, or a Task."""

    @property
    def kind(self) -> str: ...
    @property
    def shape(self) -> Shape: ...


def inputs_of(what: Shaped) -> str:
    """Kind and shape of its inputs, as a line has them: `images of 3x32x32`."""
    return f"{what.kind} of {in_words(what.shape)}"
