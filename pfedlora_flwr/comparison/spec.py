"""A comparison, methods × scenarios × seeds, as one YAML file says it:

    base:                        # keys of an Experiment, shared by all runs, written as in a run's own YAML
      rounds: 100
    methods: [standalone, pfedlora]
    seeds: [0, 1, 2]
    axes:                        # every combination of the axes' values is a scenario
      dataset: [digits, cifar10]                      # an axis named like a key: the values of that key
      federation:                                     # any other name: each value sets several keys
        - {clients: 10, participation: 1.0}
        - {clients: 50, participation: 0.2}
      mu: {tune: [0.5, 0.7, 0.9], methods: [pfedlora]}

A `tune` axis makes no scenarios. Its value is chosen for each method and scenario: the first seed runs with every combination of
the tune axes, the one with the highest validation accuracy (the first of ties) is kept and runs with the other seeds too.
`methods` limits it to the methods that it concerns; the others take the key from `base`.
Without `axes` there is one scenario, without `seeds` the seed 0.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pfedlora_flwr.config import all_keys, flatten, from_flat, located, parse_overrides, read_mapping
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.keys import Scalar, UserError

Keys = dict[str, Scalar]
PLAN = "plan.json"
_SET_BY_COMPARE = {"method", "seed", "output", "resume", "overwrite"}


@dataclass(frozen=True)
class Axis:
    """One axis: `values`, each the keys it sets. tune: its value is chosen, for `methods` (empty: all of them)."""

    name: str
    values: tuple[Keys, ...]
    tune: bool = False
    methods: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        """The keys that its values set."""
        return list(dict.fromkeys(key for value in self.values for key in value))


@dataclass(frozen=True)
class Candidate:
    """One choice of the tuned keys, and its runs: the directory of each seed, relative to the comparison's."""

    tuned: Keys
    runs: dict[int, str]


@dataclass(frozen=True)
class Cell:
    """One method in one scenario: a cell of the paper's tables. More than one candidate: the first seed's runs choose."""

    scenario: Keys
    method: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Comparison:
    """What to run. `tuning_seed` is the seed that chooses: the file's first."""

    name: str
    base: Keys
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    axes: tuple[Axis, ...]
    tuning_seed: int

    @classmethod
    def load(cls, path: Path, overrides: Iterable[str] = ()) -> Comparison:
        """The comparison in a YAML file, `overrides` ("key=value") set in its base. Raises UserError."""
        content = read_mapping(path)
        unknown = sorted(set(content) - {"base", "methods", "seeds", "axes"})
        if unknown:
            raise UserError(f"{path}: unknown key {unknown[0]!r}; allowed: base, methods, seeds, axes")
        axes = tuple(_axis(path, name, spec) for name, spec in _mapping(path, "axes", content.get("axes")).items())
        base = {str(k): v for k, v in flatten(_mapping(path, "base", content.get("base"))).items()}
        changed = parse_overrides(overrides)
        on_axes = [key for axis in axes for key in axis.keys]
        for key in [*base, *changed, *on_axes]:
            if key in _SET_BY_COMPARE:
                raise UserError(f"{path}: {key} is set by compare itself: use methods, seeds or --output")
        for key in on_axes:
            if key in changed:
                raise UserError(f"-o {key}: it is on an axis of {path}; choose its values with --only {key}=…")
            if on_axes.count(key) > 1:
                raise UserError(f"{path}: {key} is on two axes")
        methods, seeds = _list(path, "methods", content.get("methods")), _list(path, "seeds", content.get("seeds", [0]))
        if any(type(seed) is not int or seed < 0 for seed in seeds):
            raise UserError(f"{path}: seeds is {seeds}; allowed: integers ≥ 0")
        if any(not isinstance(method, str) for method in methods):
            raise UserError(f"{path}: methods is {methods}; allowed: names of methods")
        found = cls(path.stem, _parsed(path, "base", base | changed), tuple(methods), tuple(seeds), axes, seeds[0])
        for axis in axes:
            for method in set(axis.methods) - set(methods):
                raise UserError(f"{path}: axes.{axis.name}: {method!r} is not among the methods: {', '.join(methods)}")
        places: dict[str, Cell] = {}
        for cell in found.cells():  # every key in range, every method known and able to run
            for candidate in cell.candidates:
                place = candidate.runs[seeds[0]]
                if place in places:
                    raise UserError(f"{path}: {describe(places[place])} and {describe(cell)} would share the folder {place}")
                places[place] = cell
                try:
                    found.experiment(cell, candidate, seeds[0])
                except UserError as error:
                    raise UserError(f"{path}: {describe(cell)}: {error}") from None
        return found

    def select(self, methods: Sequence[str], seeds: Sequence[int], only: Iterable[str]) -> Comparison:
        """The part of it with these methods and seeds (empty: all), and `only` ("key=value[,value]") of the axes' values."""
        for method in set(methods) - set(self.methods):
            raise UserError(f"--methods: {method!r} is not in the comparison; allowed: {', '.join(self.methods)}")
        for seed in set(seeds) - set(self.seeds):
            raise UserError(f"--seeds: {seed} is not in the comparison; allowed: {', '.join(map(str, self.seeds))}")
        axes = self.axes
        for text in only:
            key, equals, wanted = text.partition("=")
            at = next((i for i, axis in enumerate(axes) if key in axis.keys), None)
            if at is None or not equals:
                allowed = ", ".join(k for axis in self.axes for k in axis.keys) or "nothing: it has no axes"
                raise UserError(f"--only {text!r}: expected key=value with a key of an axis: {allowed}")
            found = list(dict.fromkeys(value[key] for value in axes[at].values if key in value))
            spelled = [wanted] if wanted in found else wanted.split(",")  # a list of models is one value
            words = [all_keys()[k].text(all_keys()[k].parse(v)) for word in spelled for k, v in parse_overrides([f"{key}={word}"]).items()]
            if set(words) - set(found):
                raise UserError(f"--only {text!r}: allowed values: {', '.join(map(str, found))}")
            kept = tuple(value for value in axes[at].values if value.get(key) in words)
            axes = (*axes[:at], replace(axes[at], values=kept), *axes[at + 1 :])
        chosen = tuple(m for m in self.methods if m in methods or not methods), tuple(s for s in self.seeds if s in seeds or not seeds)
        return replace(self, methods=chosen[0], seeds=chosen[1], axes=axes)

    def cells(self) -> list[Cell]:
        """Every scenario with every method, in the file's order."""
        return [self._cell(scenario, method) for scenario in _product(a for a in self.axes if not a.tune) for method in self.methods]

    def experiment(self, cell: Cell, candidate: Candidate, seed: int, output: Path = Path()) -> Experiment:
        """The Experiment of one run, `output` being the comparison's directory."""
        flat = self.base | cell.scenario | candidate.tuned | {"method": cell.method, "seed": seed}
        return located(from_flat(flat), output / candidate.runs[seed])

    def write_plan(self, output: Path) -> None:
        """Leaves the plan beside the runs: a report of this directory then knows what belongs where and what is missing."""
        output.mkdir(parents=True, exist_ok=True)
        plan = {"name": self.name, "seeds": self.seeds, "tuning_seed": self.tuning_seed, "cells": [asdict(c) for c in self.cells()]}
        write_atomically(output / PLAN, (json.dumps(plan, indent=1) + "\n").encode())

    def _cell(self, scenario: Keys, method: str) -> Cell:
        tuned = _product(a for a in self.axes if a.tune and (method in a.methods or not a.methods))
        seeds = dict.fromkeys((self.tuning_seed, *self.seeds))
        runs = [{s: "/".join(filter(None, [slug(scenario), slug({method: ""} | t), f"seed-{s}"])) for s in seeds} for t in tuned]
        return Cell(scenario, method, tuple(Candidate(t, r) for t, r in zip(tuned, runs, strict=True)))


def slug(keys: Mapping[str, Scalar]) -> str:
    """A folder's name for keys and values: `clients-50_participation-0.2`."""
    parts = (f"{short(key)}-{value}" if value != "" else key for key, value in keys.items())
    return re.sub(r"[^\w.\-]+", "-", "_".join(parts))


def short(key: str) -> str:
    """A key's last part, where it says which key it is."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in all_keys()) == 1 else key


def describe(cell: Cell) -> str:
    """The cell in words, for messages."""
    return ", ".join([cell.method, *(f"{short(k)}={v}" for k, v in cell.scenario.items())])


def _product(axes: Iterable[Axis]) -> list[Keys]:
    return [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*(a.values for a in axes))]


def _mapping(path: Path, what: str, content: object) -> dict[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: {what}: expected `key: value` lines, found {type(content).__name__}")
    return {str(k): v for k, v in content.items()}


def _list(path: Path, what: str, content: object) -> list[Any]:
    if not isinstance(content, list) or not content:
        raise UserError(f"{path}: {what}: expected a list of at least one value")
    if len({str(value) for value in content}) < len(content):
        raise UserError(f"{path}: {what}: a value is there twice")
    return content


def _axis(path: Path, name: str, spec: object) -> Axis:
    where = f"axes.{name}"
    tune = isinstance(spec, dict)
    methods: list[Any] = []
    if isinstance(spec, dict):
        if "tune" not in spec or set(spec) - {"tune", "methods"}:
            raise UserError(f"{path}: {where}: expected a list of values, or {{tune: [values], methods: [names]}}")
        methods = _list(path, f"{where}.methods", spec["methods"]) if "methods" in spec else []
        spec = spec["tune"]
    values = _list(path, where, spec)
    if name in all_keys():
        values = [{name: value} for value in values]
    for value in values:
        if not isinstance(value, dict) or not value:
            raise UserError(f"{path}: {where}: {name!r} is no key of a run, so each of its values must set some: {{key: value, …}}")
    return Axis(name, tuple(_parsed(path, where, flatten(value)) for value in values), tune, tuple(methods))


def _parsed(path: Path, where: str, keys: Mapping[str, object]) -> Keys:
    """The keys with their values in the type and spelling of the configuration."""
    known, parsed = all_keys(), {}
    for key, value in keys.items():
        if key not in known:
            raise UserError(f"{path}: {where}: unknown key {key!r}; see pfedlora run --help")
        try:
            parsed[key] = known[key].text(known[key].parse(value))
        except UserError as error:
            raise UserError(f"{path}: {where}: {error}") from None
    return parsed
