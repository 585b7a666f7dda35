"""Classes, functions and arrays in the place of names: what a run's keys say of them.

What an import path leads to goes by it, as in a file. What has none, as in a notebook, goes by its
qualified name and the hash of its source (`models.given`); arrays by the hash of their bytes."""

from __future__ import annotations

import ast
import dis
import hashlib
import importlib.util
import inspect
import json
import linecache
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from pfedlora_flwr.data.arrays import columns_of
from pfedlora_flwr.errors import UserError, first_line
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.models.given import PREFIX, is_given

_DIGITS = 16
_PARTS = ("inputs", "labels", "class_names", "clients")
_SCALARS = (type(None), bool, int, float, complex, str, bytes)
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
        if isinstance(value, list | tuple) and all(
            isinstance(one, str | type) or callable(one) for one in value
        ):
            return ",".join(str(self.value(key, one)) for one in value)
        if key in _WHAT and not isinstance(value, str):
            return self._name(_WHAT[key], value)
        return value

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
            also = ", or (inputs, labels)" if what == "dataset" else ""
            raise UserError(f"{what} is {_shown(found)}; expected {expected}{also}")
        if isinstance(found, type) and (ours := _ours(found)):
            return ours
        if path := import_path(found):
            return path
        pieces = list(_Source(what).of(found))
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
        # copied, since the caller may change them, and the name says their bytes
        held = {name: _own(value[name]) for name in _PARTS if value.get(name) is not None}
        digest = hashlib.sha256()
        for name, part in held.items():
            try:
                said = _fingerprint(part)
            except ValueError as error:
                raise UserError(
                    f"dataset: {name} cannot be made an array: {first_line(str(error))}"
                ) from None
            digest.update(f"{name} {said}\n".encode())
        if columns := columns_of("dataset", held["inputs"]):
            digest.update(f"{json.dumps(columns)}\n".encode())
        named = f"{PREFIX}x{digest.hexdigest()[:_DIGITS]}:arrays"
        self.objects[named] = lambda: held
        return named


def _own(part: Any) -> Any:
    """A copy of an array, unless it cannot be written to, as a memory-mapped one; else a list."""
    if isinstance(part, np.ndarray) and not part.flags.writeable:
        return part
    if isinstance(part, Tensor):
        return part.clone()
    return deepcopy(part) if hasattr(part, "__array__") else list(part)


def check_same(saved: Mapping[str, object], given: Mapping[str, object]) -> None:
    """Raises UserError where an object is given again, and is another than the run was made with.

    saved, given: keys with names, of the run and of the call."""
    for key, name in given.items():
        was = saved.get(key)
        for old, new in zip(str(was).split(","), str(name).split(","), strict=False):
            if is_given(old) and old != new:
                raise UserError(
                    f"{_WHAT[key]} {_title(new)} is not the one that the run was made with:"
                    f" {_difference(old, new)}"
                )


def import_path(found: type | FunctionType) -> str | None:
    """`package.module:Name`, by which another process finds the object; None: it would not."""
    module, name = found.__module__, found.__qualname__
    if module == "__main__" or not name.isidentifier():
        return None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    there = getattr(sys.modules.get(module), name, None)
    return f"{module}:{name}" if spec and spec.has_location and there is found else None


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


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def _fingerprint(part: Any) -> str:
    array = np.asarray(part)
    if array.dtype.kind in "OU":
        return json.dumps([str(one) for one in array.ravel()])
    data = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
    return f"{array.dtype.str} {array.shape} {data}"


class _Source:
    """The source of an object, and of what it uses that has no import path either: functions,
    classes, and the values of globals and closures."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._seen: set[int] = set()

    def of(self, found: type | FunctionType) -> Iterator[str]:
        """The pieces, the object's own first."""
        self._seen.add(id(found))
        yield _text(self._what, found)
        if isinstance(found, FunctionType):
            yield from self._used(found)
            return
        for base in found.__bases__:
            yield from self._value("base", base)
        for name, member in vars(found).items():
            inner = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            if isinstance(inner, FunctionType):
                yield from self._used(inner)
            elif not name.startswith("__") and isinstance(inner, (*_SCALARS, tuple, list, dict)):
                yield from self._value(name, inner)

    def _used(self, function: FunctionType) -> Iterator[str]:
        for i, default in enumerate(function.__defaults__ or ()):
            yield from self._value(f"default {i}", default)
        for name, default in (function.__kwdefaults__ or {}).items():
            yield from self._value(name, default)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            try:
                yield from self._value(name, cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        for name in sorted(set(_globals(function.__code__))):
            if name in function.__globals__:
                yield from self._value(name, function.__globals__[name])

    def _value(self, name: str, value: Any) -> Iterator[str]:
        if isinstance(value, _SCALARS):
            yield f"{name} = {value!r}"
        elif isinstance(value, ModuleType):
            yield f"{name}: module {value.__name__}"
        elif isinstance(value, np.ndarray | Tensor):
            yield f"{name}: {_fingerprint(value)}"
        elif isinstance(value, Mapping):
            for key in value:
                yield from self._value(f"{name}[{key!r}]", value[key])
        elif isinstance(value, list | tuple | set | frozenset):
            for one in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
                yield from self._value(f"{name}[]", one)
        elif isinstance(value, type | FunctionType) and id(value) not in self._seen:
            path = import_path(value)
            known = path or value.__module__ == "builtins"
            yield from [f"{name}: {path or value.__name__}"] if known else self.of(value)
        else:
            yield f"{name}: {type(value).__module__}.{type(value).__qualname__}"


def _globals(code: CodeType) -> Iterator[str]:
    """The names that a function, or one within it, looks up beyond itself."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner)


def _text(what: str, found: type | FunctionType) -> str:
    """The source of a class or a function, from its file or its notebook's cell."""
    try:
        if isinstance(found, FunctionType):
            return textwrap.dedent(inspect.getsource(found))
        return _class_text(found) or textwrap.dedent(inspect.getsource(found))
    except (OSError, TypeError, SyntaxError, ValueError):
        raise UserError(
            f"{what} {found.__qualname__}: its source cannot be read; define it in a file, or in a"
            " notebook's cell"
        ) from None


def _class_text(found: type) -> str | None:
    """A class's source by the file of one of its functions: `inspect` looks for it in its module,
    which has no file in a notebook."""
    functions = [
        member
        for member in vars(found).values()
        if isinstance(member, FunctionType) and member.__qualname__.startswith(found.__qualname__)
    ]
    for function in functions:
        text = "".join(linecache.getlines(function.__code__.co_filename))
        line = function.__code__.co_firstlineno
        for node in _classes(ast.parse(text), found.__name__):
            if node.lineno <= line <= (node.end_lineno or 0):
                return textwrap.dedent(ast.get_source_segment(text, node, padded=True) or "")
    return None


def _classes(tree: ast.AST, name: str) -> Iterable[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
