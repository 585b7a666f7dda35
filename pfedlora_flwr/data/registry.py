"""Names → datasets, one entry each: everything that the program knows about a dataset, except its
reader's file."""

from __future__ import annotations

from pathlib import Path

from pfedlora_flwr.data import arrays, embedded, hub, images, tables
from pfedlora_flwr.data.cifar import CIFAR10, CIFAR100
from pfedlora_flwr.data.source import SIZE, Source
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import absolute
from pfedlora_flwr.keys import FUNCTION, chosen, in_words

_SHAPE = (3, SIZE, SIZE)
_MISSING, _MAP = "data.missing", "data.class-map"
_FEATURES = "data.features", "data.drop", "data.categories", _MISSING
_LABELS = (
    "data.label-column",
    "data.client-column",
    "data.class-names",
    "data.text-column",
    "split.column",
)
_COLUMNS = *_LABELS, *_FEATURES, _MAP
_SOURCES = (
    Source("digits", embedded.digits, classes=10, samples=1797, shape=_SHAPE, whole=True),
    Source(
        "cifar10", CIFAR10.read, "CIFAR-10", 10, 60_000, _SHAPE, files=CIFAR10.files, whole=True
    ),
    Source(
        "cifar100",
        CIFAR100.read,
        "CIFAR-100",
        100,
        60_000,
        _SHAPE,
        target=0.5,
        files=CIFAR100.files,
        whole=True,
    ),
    Source(
        "synthetic:",
        embedded.synthetic,
        classes=10,
        samples=embedded.count,
        shape=_SHAPE,
        whole=True,
    ),
    Source("folder:", images.folder, path=True, whole=True, columns=("data.subfolders", _MAP)),
    Source("npz:", arrays.npz, path=True, whole=True, columns=("split.column", _MISSING, _MAP)),
    Source("csv:", tables.csv, path=True, columns=(*_COLUMNS, "data.sep", "data.decimal")),
    Source("parquet:", tables.parquet, path=True, columns=_COLUMNS),
    Source("hf:", hub.huggingface, path=hub.is_path, columns=(*_COLUMNS, "data.input-column")),
    Source(FUNCTION, arrays.function, columns=(*_FEATURES, "split.column", _MAP), kept=False),
)
NAMES = tuple(source.name for source in _SOURCES)
"""In the order of help; one that ends in ":" takes a text after it."""


def find(name: str) -> Source:
    """The dataset `name`'s entry. Raises UserError for an unknown one."""
    found = chosen(name, NAMES)
    if found is None:
        raise UserError(f"dataset is {name!r}; allowed: {in_words(NAMES)}")
    return _SOURCES[NAMES.index(found)]


def title(name: str) -> str:
    """A dataset's name for people."""
    return find(name).title or name


def path_in(name: str) -> str:
    """The path that a dataset's name holds, empty where it holds none; of a kind that there is not
    what stands in its place."""
    if chosen(name, NAMES) is None:
        return name.partition(":")[2] or name
    source, text = _parted(name)
    return text if source.is_path(text) else ""


def _parted(name: str) -> tuple[Source, str]:
    """The dataset's entry, and the text after the entry's name."""
    source = find(name)
    return source, source.text(name)


def without_path(name: str) -> str:
    """A dataset's name for people who have not this machine: of the user's own files their kind and
    last name alone."""
    source, text = _parted(name)
    return f"{source.name}{Path(text).name}" if source.is_path(text) else title(name)


def located(name: str) -> str:
    """The dataset's name with its path, where it holds one, made absolute."""
    source, text = _parted(name)
    return f"{source.name}{absolute(text)}" if source.is_path(text) else name


def takes_path(name: str) -> bool:
    """Whether `data-path` says where the dataset's files are."""
    return bool(find(name).files) or is_function(name)


def is_function(name: str) -> bool:
    """Whether it is a user's own function, which must be imported."""
    return chosen(name, NAMES) == FUNCTION


def targets() -> str:
    """The default target accuracies, in words: the usual one, then those of the datasets that have
    another."""
    others = [
        f"for {source.name} {source.target:g}"
        for source in _SOURCES
        if source.target != Source.target
    ]
    return ", ".join([f"{Source.target:g}", *others])
