"""A comparison, methods × scenarios × seeds: read from a YAML file (docs/comparison.md), checked,
and restricted to a part."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from pfedlora_flwr.comparison.plan import Candidate, Cell, Keys, Plan, choices, unit
from pfedlora_flwr.config import (
    all_keys,
    completed,
    find_key,
    flatten,
    located,
    parse,
    parse_overrides,
    read_mapping,
    run_config,
)
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.rules import CONTROLS, normal
from pfedlora_flwr.federation.server_state import is_standalone
from pfedlora_flwr.keys import AUTO, Scalar
from pfedlora_flwr.methods.registry import POOLED

T = TypeVar("T")
_PARTS = ("base", "methods", "seeds", "axes")
_LONGEST = 200
"""Bytes of a folder's or figure's name, without what is put before or behind it."""
_NONE: dict[str, object] = {}
_SET_BY_COMPARE = {
    "method": "methods in its file, or methods=…",
    "seed": "seeds in its file, or seeds=…",
    "split.fold": "split.folds: it runs all of them",
    "output": "the comparison's own output",
    "resume": "nothing: it resumes what is there",
    "overwrite": "redo=…",
}
"""Keys that `compare` sets itself, and what to use in their place."""
_OF_TASK = re.compile(r"dataset|clients|classes|(partition|data)\..*")
"""Keys of what methods are compared on: none is chosen by accuracy, nor a control."""

_NO_GUARD: Keys = {"clip-norm-factor": 0.0}
"""What a comparison sets unless its file does: no guard of a deployment decides which candidate a
method may have. A run that diverges says so itself."""


@dataclass(frozen=True)
class Axis:
    """One axis: `values`, each the keys it sets. tune: its value is chosen, for `methods` (empty:
    all of them)."""

    name: str
    values: tuple[Keys, ...]
    tune: bool = False
    methods: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        """The keys that its values set."""
        return list(dict.fromkeys(key for value in self.values for key in value))


@dataclass(frozen=True)
class Comparison:
    """What to run. `tuning_seed` is the seed that chooses: the file's first. With `split.folds`
    a seed stands for its run of one fold, as `unit` numbers it, and the first fold chooses."""

    name: str
    base: Keys
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    axes: tuple[Axis, ...]
    tuning_seed: int

    @classmethod
    def load(
        cls, path: Path, overrides: Iterable[str] = (), keys: Mapping[str, object] = _NONE
    ) -> Comparison:
        """The comparison in a YAML file, `overrides` ("key=value") and `keys` set in its base.
        Raises UserError."""
        content, changed = read_mapping(path), parse_overrides(overrides) | dict(keys)
        try:
            return cls.of(path.stem, content, changed)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    @classmethod
    def of(cls, name: str, content: Mapping[Any, object], changed: dict[str, object]) -> Comparison:
        """The comparison of a file's content, `changed` set in its base. Raises UserError."""
        found = _built(name, content, changed)
        found.check()
        return found

    def check(self) -> None:
        """Raises UserError unless every cell can run, its keys in range, and every run has a folder
        of its own."""
        owners: dict[str, Cell] = {}
        for cell in self._grid:
            for candidate in cell.candidates:
                folder = candidate.runs[self.tuning_seed]
                if folder in owners:
                    raise UserError(
                        f"{describe(owners[folder])} and {describe(cell)} would share the folder"
                        f" {folder}"
                    )
                owners[folder] = cell
                try:
                    self.config(cell, candidate, self.tuning_seed)
                except UserError as error:
                    raise UserError(f"{describe(cell)}: {error}") from None

    def select(
        self, methods: Sequence[str], seeds: Sequence[int], only: Iterable[str]
    ) -> Comparison:
        """The part of it with these methods and seeds (empty: all), and `only`
        ("key=value[,value]") of the axes' values."""
        chosen, axes = _among("methods", methods, self.methods), self.axes
        for text in only:
            axes = _narrowed(axes, text, chosen)
        there = tuple(dict.fromkeys(one // self.folds for one in self.seeds))
        wanted = _units(_among("seeds", seeds, there), self.folds)
        return replace(self, methods=chosen, seeds=wanted, axes=axes)

    @cached_property
    def folds(self) -> int:
        """How many runs a seed has."""
        return parse({"split.folds": self.base.get("split.folds", AUTO)})["split.folds"] or 1

    def of_unit(self, one: int) -> Keys:
        """What tells the runs of a cell apart: their seed and, with folds, their fold."""
        seed, fold = divmod(one, self.folds)
        return {"seed": seed, "split.fold": fold} if self.folds > 1 else {"seed": seed}

    def unit_of(self, e: Experiment) -> int:
        """The number of a run."""
        return unit(e.seed, e.split.fold, self.folds)

    def cells(self) -> list[Cell]:
        """Every scenario with every method, in the file's order; one that is Standalone by
        construction has no candidates. Raises UserError if Standalone is tuned otherwise than such
        a one would be."""
        return [self._as_standalone(cell) for cell in self._grid]

    def config(
        self, cell: Cell, candidate: Candidate, seed: int, output: Path = Path()
    ) -> RunConfig:
        """The keys of one run, `output` being the comparison's directory."""
        own = candidate.tuned | {"method": cell.method} | self.of_unit(seed)
        flat = _NO_GUARD | self.base | cell.scenario | own
        if ":" not in cell.method:  # as with the keys of other methods
            flat.pop("method-options", None)
        return located(run_config(flat), output / candidate.runs[seed])

    def plan(self) -> Plan:
        """Its runs, for the file beside them."""
        verdict = {key: value for key, value in self.base.items() if key.startswith("verdict.")}
        what = self.name, self.seeds, self.tuning_seed, tuple(self.cells())
        return Plan(*what, verdict=verdict, folds=self.folds)

    @cached_property
    def _grid(self) -> list[Cell]:
        """Every scenario with every method."""
        return [
            self._cell(scenario, method)
            for scenario in _product(axis for axis in self.axes if not axis.tune)
            for method in self.methods
            for given in [self.base | scenario]
            if method != POOLED or given == given | normal(given)
        ]

    def _as_standalone(self, cell: Cell) -> Cell:
        """The cell, without candidates if it is Standalone by construction. What this depends on is
        the same for all its candidates and seeds."""
        if not is_standalone(Setup.of(self.config(cell, cell.candidates[0], self.tuning_seed))):
            return cell
        mine, alone = (choices(self._tuned(name)) for name in (cell.method, "standalone"))
        if "standalone" in self.methods and mine != alone:
            keys = ", ".join(sorted({key for one in mine ^ alone for key, _ in one}))
            raise UserError(
                f"{describe(cell)} is Standalone by construction, whose runs are its control, and"
                f" standalone is tuned otherwise ({keys}): name both methods on that axis, or"
                " neither"
            )
        return replace(cell, candidates=())

    def _cell(self, scenario: Keys, method: str) -> Cell:
        candidates = (self._candidate(scenario, method, tuned) for tuned in self._tuned(method))
        return Cell(scenario, method, tuple(candidates))

    def _tuned(self, method: str) -> list[Keys]:
        """Every combination of its tuned keys."""
        return _product(
            axis for axis in self.axes if axis.tune and (method in axis.methods or not axis.methods)
        )

    def _candidate(self, scenario: Keys, method: str, tuned: Keys) -> Candidate:
        folders = [slug(scenario), slug({method: ""} | tuned)]
        seeds = dict.fromkeys((self.tuning_seed, *self.seeds))
        given = self.base | scenario | tuned
        runs = {
            seed: "/".join(filter(None, [*folders, *(slug({k: v}) for k, v in own.items())]))
            for seed in seeds
            for own in [self.of_unit(seed)]
        }
        keys = completed(parse(given | {"method": method}))
        return Candidate(tuned, runs, Experiment.of(keys).rounds)


def _units(seeds: Iterable[int], folds: int) -> tuple[int, ...]:
    return tuple(unit(seed, fold, folds) for seed in seeds for fold in range(folds))


def slug(keys: Mapping[str, Scalar]) -> str:
    """A folder's name for keys and values: `clients-50_participation-0.2`; of a long one the begin,
    and a hash of all."""
    parts = (f"{short(key)}-{value}" if value != "" else key for key, value in keys.items())
    name = re.sub(r"[^\w.\-]+", "-", "_".join(parts))
    if len(raw := name.encode()) <= _LONGEST:
        return name
    begin = raw[: _LONGEST - 9].decode(errors="ignore")
    return f"{begin}-{hashlib.sha256(raw).hexdigest()[:8]}"


def short(key: str) -> str:
    """A key's last part, where it says which key it is."""
    last = key.rpartition(".")[2]
    return last if _lasts()[last] == 1 else key


@cache
def _lasts() -> Counter[str]:
    """How many keys end with each last part."""
    return Counter(key.rpartition(".")[2] for key in all_keys())


def describe(cell: Cell) -> str:
    """The cell in words, for messages."""
    return ", ".join([cell.method, *(f"{short(k)}={v}" for k, v in cell.scenario.items())])


def _product(axes: Iterable[Axis]) -> list[Keys]:
    return [
        {k: v for part in parts for k, v in part.items()}
        for parts in itertools.product(*(a.values for a in axes))
    ]


def _among(option: str, wanted: Sequence[T], there: tuple[T, ...]) -> tuple[T, ...]:
    """Those of `there` that are wanted, all if none is named."""
    for value in wanted:
        if value not in there:
            raise UserError(
                f"{option}={value!r} is not in the comparison; allowed:"
                f" {', '.join(map(str, there))}"
            )
    return tuple(value for value in there if value in wanted or not wanted)


def _narrowed(axes: tuple[Axis, ...], text: str, methods: Sequence[str]) -> tuple[Axis, ...]:
    """The axes, those of a key with the values alone that `text` ("key=value[,value]") names, as
    far as they concern these methods."""
    key, equals, wanted = text.partition("=")
    with_key = [axis for axis in axes if key in axis.keys]
    if not with_key or not equals:
        keys = ", ".join(k for axis in axes for k in axis.keys)
        expected = f"expected key=value with a key of an axis: {keys}"
        raise UserError(f"only={text!r}: {expected if keys else 'the comparison has no axes'}")
    on_axis = list(dict.fromkeys(v[key] for axis in with_key for v in axis.values if key in v))
    words = [wanted] if wanted in on_axis else wanted.split(",")  # a list of models is one value
    chosen = [_scalar(key, parse_overrides([f"{key}={word}"])[key]) for word in words]
    if set(chosen) - set(on_axis):
        raise UserError(f"only={text!r}: allowed values: {', '.join(map(str, on_axis))}")

    def kept(axis: Axis) -> tuple[Keys, ...]:
        found = tuple(value for value in axis.values if value.get(key) in chosen)
        if not found:
            raise UserError(f"only={text!r}: {', '.join(axis.methods)} would have no value left")
        return found

    return tuple(
        replace(a, values=kept(a))
        if a in with_key and (not a.methods or {*a.methods} & {*methods})
        else a
        for a in axes
    )


# Reading: a YAML mapping, piece by piece


def _built(name: str, content: Mapping[Any, object], changed: dict[str, object]) -> Comparison:
    """The comparison of a file's content; `changed` are keys that the user sets in its base."""
    unknown = next((part for part in content if part not in _PARTS), None)
    if unknown is not None:
        of_run = unknown in {key.partition(".")[0] for key in all_keys()}
        hint = "; a run's keys are for `pfedlora run`, or stand in base" if of_run else ""
        raise UserError(f"unknown key {unknown!r}; allowed: {', '.join(_PARTS)}{hint}")
    axes = tuple(_axis(axis, spec) for axis, spec in _mapping("axes", content.get("axes")).items())
    base = flatten(_mapping("base", content.get("base")))
    _check_owners([*base, *changed], changed, axes)
    methods = _names("methods", content.get("methods"))
    seeds = _list("seeds", content.get("seeds", [0]))
    if any(type(seed) is not int or seed < 0 for seed in seeds):
        raise UserError(f"seeds is {seeds}; allowed: integers ≥ 0")
    for axis in axes:
        for method in axis.methods:
            if method not in methods:
                raise UserError(
                    f"axes.{axis.name}: {method!r} is not among the methods: {', '.join(methods)}"
                )
    found = Comparison(name, _parsed("base", base | changed), methods, (), axes, 0)
    units = _units(seeds, found.folds)
    return replace(found, seeds=units, tuning_seed=units[0])


def _check_owners(of_base: Sequence[str], changed: Iterable[str], axes: Sequence[Axis]) -> None:
    """Raises UserError if a key is set from two sides."""
    on_axes = [key for axis in axes for key in axis.keys]
    for key in (*of_base, *on_axes):
        if key in _SET_BY_COMPARE:
            raise UserError(f"{key} is set by compare itself: use {_SET_BY_COMPARE[key]}")
    if "split.folds" in on_axes:
        raise UserError("split.folds is on an axis; allowed: in base alone")
    for key in on_axes:
        if key in changed:
            raise UserError(f"{key}: it is on an axis; choose its values with only={key}=…")
        of = [axis.methods for axis in axes if key in axis.keys]
        if len(of) > 1 and (() in of or len({*chain(*of)}) < sum(map(len, of))):
            raise UserError(f"{key} is on two axes; allowed: tune axes of different `methods`")


def _axis(name: str, spec: object) -> Axis:
    where, tune = f"axes.{name}", isinstance(spec, dict)
    methods: tuple[str, ...] = ()
    if isinstance(spec, dict):
        if "tune" not in spec or set(spec) - {"tune", "methods"}:
            raise UserError(
                f"{where}: expected a list of values, or {{tune: [values], methods: [names]}}"
            )
        methods = _names(f"{where}.methods", spec["methods"]) if "methods" in spec else ()
        spec = spec["tune"]
    values = _list(where, spec)
    if name in all_keys():
        values = [{name: value} for value in values]
    for value in values:
        if not isinstance(value, dict) or not value:
            raise UserError(
                f"{where}: {name!r} is no key of a run, so each of its values must set some: {{key:"
                " value, …}"
            )
    axis = Axis(name, tuple(_parsed(where, flatten(value)) for value in values), tune, methods)
    of_task = [k for k in axis.keys if k in CONTROLS or _OF_TASK.fullmatch(k)]
    if tune and of_task:
        raise UserError(
            f"{where}: {of_task[0]} cannot be tuned: it would choose the task or the control; make"
            " it an axis of scenarios, a list"
        )
    return axis


def _mapping(where: str, content: object) -> dict[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{where}: expected `key: value` lines, found {type(content).__name__}")
    return {str(k): v for k, v in content.items()}


def _list(where: str, content: object) -> list[Any]:
    if not isinstance(content, list) or not content:
        raise UserError(f"{where}: expected a list of at least one value")
    if len({str(value) for value in content}) < len(content):
        raise UserError(f"{where}: a value appears twice")
    return content


def _names(where: str, content: object) -> tuple[str, ...]:
    found = _list(where, content)
    if any(not isinstance(name, str) for name in found):
        raise UserError(f"{where} is {found}; allowed: names of methods")
    return tuple(found)


def _parsed(where: str, keys: Mapping[str, object]) -> Keys:
    """The keys with their values in the type and spelling of the configuration."""
    try:
        return {key: _scalar(key, value) for key, value in keys.items()}
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _scalar(key: str, value: object) -> Scalar:
    known = find_key(key)
    return known.text(known.parse(value))
