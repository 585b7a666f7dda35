"""Classes, functions and arrays in the place of names: what a run's keys say of them.

What an import path leads to goes by it, as in a file. What has none, as in a notebook, goes by its
qualified name and the hash of its source (`models.given`); arrays by the hash of their bytes."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from torch import nn

from pfedlora_flwr.api.given_arrays import fingerprint, made_array, own
from pfedlora_flwr.api.sources import Source, import_path
from pfedlora_flwr.data.arrays import columns_of, names_of
from pfedlora_flwr.errors import UserError, kind
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.models.given import PREFIX, is_given

_DIGITS = 16
_PARTS = ("inputs", "labels", "class_names", "clients")
_WHAT = {"method": "method", "models": "model", "dataset": "dataset", "observers": "observer"}
"""Keys that name objects, and what they name."""


@dataclass
class Given:
    """Objects without an import path, by their names in a run's keys, with their sources."""

    objects: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def value(self, key: str, value: object) -> object:
        """What the key is set to: objects become their names, lists of names one text."""
        if key == "dataset" and isinstance(value, Mapping | tuple):
            return self._arrays(value)
        if key == "method-options" and isinstance(value, Mapping):
            return shlex.join(f"{name}={_plain(one)}" for name, one in value.items())
        if isinstance(value, list | tuple) and all(
            isinstance(one, str | type) or callable(one) for one in value
        ):
            return ",".join(str(self.value(key, one)) for one in value)
        if key in _WHAT and not isinstance(value, str):
            return self._name(_WHAT[key], value)
        return value

    def check_here(self, engine: str) -> None:
        """Raises UserError if an engine's own processes would have to find these objects."""
        if self.objects and engine != "local":
            raise UserError(
                f"{next(iter(self.objects))} has no import path by which the processes of"
                f" engine={engine!r} find it; put it in a module, or take engine='local'"
            )

    def joined(self, other: Given) -> Given:
        """The objects of both."""
        return Given(self.objects | other.objects, self.sources | other.sources)

    def _name(self, what: str, found: object) -> str:
        if isinstance(found, nn.Module):
            raise UserError(
                f"{what} is an instance of {type(found).__name__}; give its class, or a function"
                " that makes it: each client has a model of its own"
            )
        if not isinstance(found, type | FunctionType):
            expected = "a name, a class or a function"
            also = ", or (inputs, labels): all samples in two arrays" if what == "dataset" else ""
            raise UserError(f"{what} is {_shown(found)}; expected {expected}{also}")
        if isinstance(found, type) and (ours := _ours(found)):
            return ours
        if path := import_path(found):
            return path
        pieces = list(Source(what).of(found))
        module, _, name = f"{found.__module__}.{found.__qualname__}".rpartition(".")
        where = ".".join("".join(filter(_letter, word)) for word in module.split("."))
        source = "\n".join(pieces)
        digest = hashlib.sha256(source.encode()).hexdigest()[:_DIGITS]
        named = f"{PREFIX}x{digest}.{where}:{''.join(filter(_letter, name))}"
        self.objects[named], self.sources[named] = found, source
        return named

    def _arrays(self, value: Mapping[str, Any] | tuple[Any, ...]) -> str:
        """Inputs, labels and perhaps class names and owners, as a dataset that is a function."""
        if isinstance(value, tuple):
            if not 2 <= len(value) <= 3:
                raise UserError(
                    f"dataset is a tuple of {len(value)}; expected (inputs, labels) or (inputs,"
                    " labels, class names)"
                )
            value = dict(zip(_PARTS, value, strict=False))
        if not {"inputs", "labels"} <= value.keys() <= set(_PARTS):
            raise UserError(
                f"dataset is a dict of {', '.join(map(str, value))}; expected inputs, labels and"
                " perhaps class_names and clients"
            )
        value = {**value, "class_names": names_of("dataset", value.get("class_names"))}
        # copied, since the caller may change them, and the name says their bytes
        held, digest = {}, hashlib.sha256()
        for name in _PARTS:
            if value.get(name) is None:
                continue
            if isinstance(value[name], Mapping | Set | str | bytes):
                raise UserError(f"dataset: {name} is {kind(value[name])}; expected an array")
            with made_array(f"dataset: {name}"):
                held[name] = own(value[name])
                said = fingerprint(held[name])
            digest.update(f"{name} {said}\n".encode())
        if columns := columns_of("dataset", held["inputs"]):
            digest.update(f"{json.dumps(columns)}\n".encode())
        named = f"{PREFIX}x{digest.hexdigest()[:_DIGITS]}:arrays"
        self.objects[named] = lambda: held
        return named


def check_same(saved: Mapping[str, object], given: Mapping[str, object]) -> None:
    """Raises UserError where an object is given again, and is another than the run was made with.

    saved, given: keys with names, of the run and of the call."""
    for key, name in given.items():
        for old, new in zip(str(saved.get(key)).split(","), str(name).split(","), strict=False):
            if is_given(old) and old != new:
                raise UserError(
                    f"{_WHAT[key]} {_title(new)} is not the one that the run was made with:"
                    f" {_difference(old, new)}"
                )


def _ours(found: type) -> str | None:
    """The name of a method of this package."""
    module = found.__module__.rpartition(".")[2]
    if module in registry.NAMES and issubclass(found, Method) and registry.find(module) is found:
        return module
    return None


def _difference(old: str, new: str) -> str:
    if _title(old) != _title(new) or not is_given(new):
        return f"that was {_title(old)}"
    digests = (name.removeprefix(f"{PREFIX}x")[:_DIGITS] for name in (old, new))
    what = "bytes and columns" if _title(new) == "arrays" else "source"
    return "the hash of its {} was {}, and is {}".format(what, *digests)


def _title(name: str) -> str:
    return name.rpartition(":")[2]


def _letter(character: str) -> bool:
    return character.isalnum() or character == "_"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
