"""Names → datasets, an entry each: all that the program knows of one, but for its reader's file."""

from __future__ import annotations

from pathlib import Path

from pfedlora_flwr.data import cifar, embedded, images
from pfedlora_flwr.data.source import Source
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import absolute
from pfedlora_flwr.keys import chosen, in_words

_SOURCES = (
    Source("digits", embedded.digits, classes=10, samples=1797),
    Source("cifar10", cifar.CIFAR10.read, "CIFAR-10", classes=10, samples=60_000, files=cifar.CIFAR10.files),
    Source("cifar100", cifar.CIFAR100.read, "CIFAR-100", classes=100, samples=60_000, target=0.5, files=cifar.CIFAR100.files),
    Source("synthetic:", embedded.synthetic, classes=10, samples=embedded.count),
    Source("folder:", images.folder, path=True),
    Source("npz:", images.npz, path=True),
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


def without_path(name: str) -> str:
    """A dataset's name for people who have not this machine: of the user's own files their kind and last name alone."""
    source = find(name)
    return f"{source.name}{Path(source.text(name)).name}" if source.path else title(name)


def located(name: str) -> str:
    """The dataset's name with its path, where it holds one, made absolute."""
    source = find(name)
    return f"{source.name}{absolute(source.text(name))}" if source.path else name


def targets() -> str:
    """The default target accuracies, in words: the usual one, then those of the datasets that have another."""
    others = [f"for {source.name} {source.target:g}" for source in _SOURCES if source.target != Source.target]
    return ", ".join([f"{Source.target:g}", *others])
