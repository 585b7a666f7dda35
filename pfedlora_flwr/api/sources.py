"""The source of an object that has no import path, and of all that it uses."""

from __future__ import annotations

import ast
import dis
import importlib.util
import inspect
import linecache
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from functools import cached_property, partial
from operator import itemgetter
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pfedlora_flwr.api.given_arrays import SCALARS, detached, fingerprint
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.runs.code_copy import is_installed

_BY_REPR = (np.generic, np.dtype, range, slice, torch.dtype, torch.device, PurePath)
_HELD = (*SCALARS, *_BY_REPR, tuple, list, dict, np.ndarray, Tensor, partial)
"""Attributes of a class whose values its source may leave to names."""
_DEEPEST = 30
"""Values within values that are looked at."""
_ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")


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


class Source:
    """The source of an object, and of what it uses that has no import path either: functions,
    classes, and the values of globals and closures. Of an instance of an installed library's class
    that is neither a dataclass nor a module its type alone: it may hold times and counters."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._seen: set[int] = set()
        self._instances: dict[int, int] = {}
        self._open: set[int] = set()

    def of(self, found: type | FunctionType) -> Iterator[str]:
        """The pieces, the object's own first."""
        self._seen.add(id(found))
        yield _text(self._what, found)
        if isinstance(found, FunctionType):
            yield from self._used(found)
        else:
            yield from self._members(found)

    def _members(self, found: type) -> Iterator[str]:
        for base in found.__bases__:
            yield from self._value("base", base)
        for name, member in vars(found).items():
            inner = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            if isinstance(inner, FunctionType):
                yield from self._used(inner)
            elif not name.startswith("__") and isinstance(inner, _HELD):
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
        if len(self._open) == _DEEPEST or id(value) in self._open:
            yield f"{name}: {_type(value)}"
            return
        self._open.add(id(value))
        try:
            yield from self._told(name, value)
        finally:
            self._open.remove(id(value))

    def _told(self, name: str, value: Any) -> Iterator[str]:
        if isinstance(value, (*SCALARS, *_BY_REPR)):
            yield f"{name} = {value!r}"
        elif isinstance(value, ModuleType):
            yield f"{name}: module {value.__name__}"
        elif isinstance(value, np.ndarray | Tensor):
            yield f"{name}: {_bytes(value)}"
        elif isinstance(value, BuiltinFunctionType | np.ufunc):
            yield f"{name}: {getattr(value, '__qualname__', value.__name__)}"
        elif isinstance(value, Mapping):
            for key in value:
                yield from self._value(f"{name}[{key!r}]", value[key])
        elif isinstance(value, set | frozenset):
            for one in _ordered(value):
                yield from self._value(f"{name}[]", one)
        elif isinstance(value, list | tuple):
            for one in value:
                yield from self._value(f"{name}[]", one)
        elif isinstance(value, type | FunctionType) and id(value) not in self._seen:
            path = import_path(value)
            known = path or value.__module__ == "builtins"
            yield from [f"{name}: {path or value.__name__}"] if known else self.of(value)
        elif hasattr(type(value), "__array__") and not isinstance(value, type):
            yield f"{name}: {_bytes(value)}"
        else:
            try:
                yield from [*self._instance(name, value)]
            except Exception:  # of a user's own class, which may do anything when it is looked at
                yield f"{name}: {_type(value)}"

    def _instance(self, name: str, value: Any) -> Iterator[str]:
        """Each once: another time its number among them."""
        if (parts := _parts(value)) is None:
            yield f"{name}: {_type(value)}"
            return
        cls, met = type(value), len(self._instances)
        number = self._instances.setdefault(id(value), met)
        yield f"{name}: {_type(value)} {number}"
        if number < met:
            return
        if id(cls) not in self._seen and import_path(cls) is None and not is_installed(cls):
            self._seen.add(id(cls))
            with suppress(UserError):  # a notebook's class without functions has none to read
                yield _text(self._what, cls)
            yield from self._members(cls)
        for part in parts:
            yield from self._value(f"{name}.{part}", parts[part])


def _type(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _ordered(found: Iterable[Any]) -> list[Any]:
    """A set's values in an order that lasts; of those that only an address tells apart the types'
    names."""
    said = [(_ADDRESS.sub("", repr(one)), one) for one in found]
    return [
        one if isinstance(one, type | FunctionType) or text == repr(one) else _type(one)
        for text, one in sorted(said, key=itemgetter(0))
    ]


def _bytes(value: Any) -> str:
    """An array by its bytes, a data frame, or a column of one, also by its names."""
    try:
        said, index = [fingerprint(value)], getattr(value, "index", None)
        if isinstance(value, Tensor) and value.dtype != detached(value).dtype:
            said.append(str(value.dtype))
        if hasattr(index, "__array__"):
            said.append(fingerprint(index))
        return " ".join([*said, *map(str, getattr(value, "columns", ()))])
    except (ValueError, TypeError, RuntimeError):  # it cannot be made an array
        return _type(value)


def _parts(value: Any) -> Mapping[str, Any] | None:
    """What tells an instance from others of its type; None: nothing is known of it."""
    if isinstance(value, partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    if isinstance(value, MethodType):
        return {"func": value.__func__, "self": value.__self__}
    if isinstance(value, Enum):
        return {"name": value.name, "value": value.value}
    made = inspect.getattr_static(value, "__wrapped__", None)
    if isinstance(made, FunctionType):  # as of lru_cache
        return {"wrapped": made}
    if isinstance(value, type | FunctionType) or (
        is_installed(type(value))
        and not (is_dataclass(value) or isinstance(value, SimpleNamespace | nn.Module))
    ):
        return None
    own = (vars(cls).get("__slots__", ()) for cls in type(value).__mro__)
    slots = [slot for of in own for slot in ([of] if isinstance(of, str) else of)]
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    held |= getattr(value, "__dict__", {})
    return {
        name: part
        for name, part in held.items()
        if not isinstance(getattr(type(value), name, None), cached_property)
    }


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
    for function in [
        member
        for member in vars(found).values()
        if isinstance(member, FunctionType) and member.__qualname__.startswith(found.__qualname__)
    ]:
        text = "".join(linecache.getlines(function.__code__.co_filename))
        line = function.__code__.co_firstlineno
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.ClassDef) and node.name == found.__name__):
                continue
            if node.lineno <= line <= (node.end_lineno or 0):
                return textwrap.dedent(ast.get_source_segment(text, node, padded=True) or "")
    return None
