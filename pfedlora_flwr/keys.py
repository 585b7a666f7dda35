"""Configuration keys: a dataclass field with its name, range, meaning, and one parser for its
values."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import Any, Generic, Self, TypeVar

from pfedlora_flwr.errors import UserError

Scalar = bool | int | float | str
T = TypeVar("T")
AUTO = "auto"
FUNCTION = "package.module:function"
"""A choice that stands for every name of this form."""
_LARGEST = 2**63
"""Flower's run-config holds 64-bit integers."""


@dataclass(frozen=True, repr=False)
class Listed(Sequence[T]):
    """The items of a text, in order. It prints as the text and is equal to the same text."""

    text: str
    items: tuple[T, ...] = field(compare=False)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return repr(self.text)


@dataclass(frozen=True)
class Form(Generic[T]):
    """Texts with items that are separated by commas.

    allowed: in words. item: one from its text; raises ValueError for none. empty: whether
    there may be no item."""

    allowed: str
    item: Callable[[str], T]
    empty: bool = False

    def read(self, text: str) -> Listed[T]:
        """Raises ValueError with the first item that is none."""
        words = [word.strip() for word in text.split(",")] if text or not self.empty else []
        items = []
        for word in words:
            try:
                items.append(self.item(word))
            except ValueError:
                raise ValueError(word) from None
        return Listed(text, tuple(items))


def integer(word: str, low: int = 1) -> int:
    """The number of a word of a Form; raises ValueError for one that is none, or too low."""
    if not (word.isascii() and word.isdigit() and low <= int(word) < 10**9):
        raise ValueError(word)
    return int(word)


def nonempty(word: str) -> str:
    """A word of a Form that is not empty; raises ValueError."""
    if not word:
        raise ValueError(word)
    return word


def key(
    default: Any,
    meaning: str,
    *,
    name: str | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Sequence[str] | None = None,
    path: bool = False,
    needs: str = "",
    form: Form[Any] | None = None,
) -> Any:
    """A dataclass field that is a configuration key.

    Args:
        default: the documented default; None reads and prints as `auto`. meaning: what the key
        does, with its unit. name: the key's whole name where it is not the attribute's with dashes,
        behind its section's. low, high: inclusive bounds. above, below: exclusive ones. choices:
        the allowed strings; one that ends in ":" or "@" allows any text after it, FUNCTION any
        name of its form. path: whether it is a file's, which is absolute in a run. needs: another
        key without which it changes nothing, as `key=value`, or as `key` alone, which must not be
        at its default. form: of a text's items.
    """
    if form and default is not None:
        default = form.read(default)
    bounds = (low, high, above, below)
    made = Key(name or "", "", str, False, default, meaning, *bounds, choices, path, needs, form)
    return field(default=default, metadata={"key": made})


def section(kind: type, *, needs: str = "") -> Any:
    """A dataclass field that is a Section: its keys are called `FIELD.KEY`.

    needs: what all of them need, as `key` has it, but those that say it themselves."""
    return field(default_factory=kind, metadata={"section": kind, "needs": needs})


@dataclass(frozen=True)
class Key:
    """One configuration key, as declared by `key` on a dataclass.

    attribute: its place in the dataclass; with a dot, in a section of it."""

    name: str
    attribute: str
    kind: type
    auto: bool
    default: Any
    meaning: str
    low: float | None
    high: float | None
    above: float | None
    below: float | None
    choices: Sequence[str] | None
    path: bool = False
    needs: str = ""
    form: Form[Any] | None = None

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.choices is not None:
            words = in_words(self.choices)
        elif self.form:
            words = f"{self.form.allowed}, separated by commas"
        else:
            words = {bool: "true or false", int: "an integer", float: "a number", str: "text"}[
                self.kind
            ]
            bounds = [
                f"> {self.above:g}" if self.above is not None else "",
                f"≥ {self.low:g}" if self.low is not None else "",
            ]
            bounds += [
                f"≤ {self.high:g}" if self.high is not None else "",
                f"< {self.below:g}" if self.below is not None else "",
            ]
            words = " ".join([words, " and ".join(b for b in bounds if b)]).strip()
        return f"auto, or {words}" if self.auto else words

    def parse(self, value: object) -> Any:
        """The value as this key's type; raises UserError with the key, the value and what is
        allowed."""
        if self.auto and (value is None or value == AUTO):
            return None
        if self.kind is float and isinstance(value, int | str) and not isinstance(value, bool):
            try:  # YAML 1.1 reads 1e-3 as text
                value = float(value)
            except (ValueError, OverflowError):
                value = math.nan if isinstance(value, int) else value
        if (
            self.kind is str
            and self.choices is None
            and isinstance(value, int | float)
            and not isinstance(value, bool)
        ):
            value = str(value)  # `-o output=123`
        if type(value) is not self.kind or not self._in_range(value):
            huge = isinstance(value, int | float) and not abs(value) < _LARGEST  # NaN too
            raise UserError(
                f"{self.name} is {_short(value)}; allowed:"
                f" {self.allowed}{', finite and below 2^63' if huge else ''}"
            )
        try:
            return self.form.read(str(value)) if self.form else value
        except ValueError as error:
            told = f"{self.name} is {_short(value)}; allowed: {self.allowed}"
            raise UserError(f"{told}; {str(error)!r} is none") from None

    def text(self, value: Any) -> Scalar:
        """The value as a run-config scalar (None becomes `auto`)."""
        return AUTO if value is None else value.text if self.form else value

    def _in_range(self, value: Any) -> bool:
        if self.choices is not None:
            return chosen(value, self.choices) is not None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return (
                abs(value) < _LARGEST  # not of infinities and NaN
                and (self.low is None or value >= self.low)
                and (self.high is None or value <= self.high)
                and (self.above is None or value > self.above)
                and (self.below is None or value < self.below)
            )
        return True


def said(key: Key, value: Any) -> str:
    """A key and its value as messages have them."""
    text = str(key.text(value))
    return f"{key.name} is {text.lower() if key.kind is bool else text}"


def unmet(need: str, keys: Mapping[str, tuple[Key, Any]]) -> str:
    """What stands against a key's `needs` in these keys and values; empty: nothing."""
    name, _, wanted = need.partition("=")
    key, value = keys[name]
    if wanted:
        met = wanted in value if key.form else value == wanted
    else:
        met = value != key.default
    return "" if met else said(key, value)


@dataclass(frozen=True)
class Section:
    """A frozen dataclass of keys; lists may be given as their texts."""

    def __post_init__(self) -> None:
        for k, value in Section.keys(self).values():
            if k.form and isinstance(value, str):
                object.__setattr__(self, k.attribute, k.parse(value))

    @classmethod
    def of(cls, parsed: Mapping[str, Any]) -> Self:
        """With the values, by key, of those that are this section's."""
        owner: type = cls
        own = keys_of(owner).items()
        return cls().replace(**{k.attribute: parsed[name] for name, k in own if name in parsed})

    def keys(self) -> dict[str, tuple[Key, Any]]:
        """Every key by its name, with its value."""
        owner: type = type(self)
        return {name: (k, attrgetter(k.attribute)(self)) for name, k in keys_of(owner).items()}

    def sections(self) -> list[Section]:
        """Those in it."""
        own = [f.name for f in dataclasses.fields(self) if "section" in f.metadata]
        return [getattr(self, name) for name in own]

    def flat(self) -> dict[str, Scalar]:
        """Every key as a run-config scalar."""
        return {name: k.text(value) for name, (k, value) in self.keys().items()}

    def changed(self) -> dict[str, Scalar]:
        """The keys that are not at their defaults."""
        every = self.keys().items()
        return {name: k.text(value) for name, (k, value) in every if value != k.default}

    def replace(self, **changes: Any) -> Self:
        """A copy with attributes changed, as a Key names them; what goes together is not checked
        again."""
        own = {name: value for name, value in changes.items() if "." not in name}
        for part in {name.partition(".")[0] for name in changes.keys() - own.keys()}:
            inner = {n.partition(".")[2]: v for n, v in changes.items() if n.startswith(f"{part}.")}
            own[part] = getattr(self, part).replace(**inner)
        return dataclasses.replace(self, **own)

    def check(self) -> None:
        """Raises UserError for keys of this section that do not go together."""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def chosen(value: str, choices: Iterable[str]) -> str | None:
    """The choice that `value` is, or, of one that ends in ":" or "@", begins with and goes on from,
    or whose form it has; None: there is none."""
    names = list(choices)
    for name in names:
        open_ended = name.endswith((":", "@"))
        if value.startswith(name) and value != name if open_ended else value == name:
            return name
    module, _, attribute = value.partition(":")
    dotted = attribute.isidentifier() and all(map(str.isidentifier, module.split(".")))
    if dotted and FUNCTION in names and not {module, f"{module}:"} & {*names}:
        return FUNCTION
    return None


def in_words(choices: Iterable[str]) -> str:
    """Choices as messages and tables list them."""
    return " | ".join(f"{c}…" if c.endswith((":", "@")) else c for c in choices)


@cache
def keys_of(owner: type, prefix: str = "") -> dict[str, Key]:
    """The keys that a dataclass and its sections declare, by name, in order (its other fields are
    left out)."""
    hints = typing.get_type_hints(owner)
    found = {}
    for f in dataclasses.fields(owner):
        if "section" in f.metadata:
            needs = f.metadata["needs"]
            for name, k in keys_of(f.metadata["section"], f"{f.name.replace('_', '-')}.").items():
                place = f"{f.name}.{k.attribute}"
                found[name] = dataclasses.replace(k, attribute=place, needs=k.needs or needs)
        if "key" not in f.metadata:
            continue
        declared: Key = f.metadata["key"]
        kind, auto = hints[f.name], False
        if isinstance(kind, types.UnionType):
            kind, auto = typing.get_args(kind)[0], True
        kind = str if declared.form else kind
        name = declared.name or prefix + f.name.strip("_").replace("_", "-")
        found[name] = dataclasses.replace(
            declared, name=name, attribute=f.name, kind=kind, auto=auto
        )
    return found
