"""A run's keys, read and checked: from a YAML file, from `key=value` texts and from Flower's
run-config."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pfedlora_flwr import execution, experiment
from pfedlora_flwr.config.checks import check
from pfedlora_flwr.config.files import read_run, scalar
from pfedlora_flwr.data import registry as datasets
from pfedlora_flwr.data import split
from pfedlora_flwr.data.datasets import count_classes
from pfedlora_flwr.data.partition import KINDS
from pfedlora_flwr.data.setup import DataSetup
from pfedlora_flwr.errors import UserError, meant, permissions
from pfedlora_flwr.execution import Execution, RunConfig
from pfedlora_flwr.experiment import Experiment, option_keys
from pfedlora_flwr.files import absolute
from pfedlora_flwr.keys import AUTO, Key, keys_of
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.models import lora
from pfedlora_flwr.models import registry as models
from pfedlora_flwr.models.spec import ANCHORS
from pfedlora_flwr.training.metrics import MAY_DECIDE

_PER_CLIENT = "partition.classes-per-client"
"""A key that may be auto, and is a number in an Experiment."""
_LOCATED = {
    "dataset": datasets.located,
    "models": models.located,
    "lora.init": lora.located,
    "representation": lambda text: (
        f"{ANCHORS}{absolute(text.removeprefix(ANCHORS))}" if text.startswith(ANCHORS) else text
    ),
    **dict.fromkeys(
        ("start-from", "data.class-map"), lambda place: str(absolute(place)) if place else ""
    ),
}
"""Keys that may hold a path among other words."""


@cache
def all_keys() -> dict[str, Key]:
    """Every key by name: the Experiment's and the Execution's, with what the rooms of data and
    scores allow, then each method's own."""
    ours = experiment.KEYS
    target = ours["target-accuracy"]
    found = ours | {
        "dataset": replace(ours["dataset"], choices=datasets.NAMES),
        "partition.kind": replace(ours["partition.kind"], choices=KINDS),
        "split.kind": replace(ours["split.kind"], choices=[*split.KINDS]),
        "target-accuracy": replace(target, meaning=f"{target.meaning} ({datasets.targets()})"),
    }
    deciding = execution.KEYS["verdict.score"]
    found |= execution.KEYS | {"verdict.score": replace(deciding, choices=MAY_DECIDE)}
    for name in registry.NAMES:
        found |= option_keys(name, registry.find(name).Options)
    return found


def run_config(flat: Mapping[str, object]) -> RunConfig:
    """A run's keys from flat ones, checked. Raises UserError for an unknown key, a wrong type, a
    value out of range.

    Options of other methods than its own are checked and left out: one file may serve several
    methods."""
    parsed = completed(parse(flat))
    e, x = Experiment.of(parsed), Execution.of(parsed)
    if flat.get(_PER_CLIENT) == AUTO:
        e = e.replace(**{"partition.classes_per_client": _even(e, x)})
    method = registry.find(e.method)
    own = option_keys(e.method, method.Options)
    given = {k.attribute: parsed[name] for name, k in own.items() if name in parsed}
    if ":" in e.method:
        given = _method_options(e, method)
    config = RunConfig(e.replace(options=method.Options(**given)), x)
    for name, (own_key, value) in config.keys().items():
        if own_key.path and value:
            permissions.check_file(name, value, permissions.WEIGHTS)
    check(config, method)
    return config


def _even(e: Experiment, x: Execution) -> int:
    """`partition.classes-per-client` where it is auto: 2, or the smallest larger number that gives
    each class the same number of clients."""
    if e.partition.kind != "pathological":
        return e.partition.classes_per_client
    classes = e.classes or count_classes(e.dataset, DataSetup(e, x.data_path).reading)
    return next((k for k in range(2, classes) if e.clients * k % classes == 0), classes)


def from_flat(flat: Mapping[str, object]) -> Experiment:
    """The Experiment alone of a run's flat keys, all of which are checked. Raises UserError."""
    return run_config(flat).experiment


def parse(flat: Mapping[str, object]) -> dict[str, Any]:
    """The values of flat keys, each by itself. Raises UserError for an unknown key, a wrong type, a
    value out of range.

    `partition.classes-per-client` is left out where it is auto: it depends on others."""
    return {
        name: find_key(name).parse(value)
        for name, value in flat.items()
        if (name, value) != (_PER_CLIENT, AUTO)
    }


def completed(parsed: Mapping[str, Any]) -> dict[str, Any]:
    """The values of keys, by name, with those that their method has for others. Raises UserError
    for an unknown method."""
    return {**registry.find(Experiment.of(parsed).method).default_keys(parsed), **parsed}


def load(path: Path | None, overrides: Iterable[str] = ()) -> RunConfig:
    """A run's keys from a YAML file and `key=value` overrides (later ones win)."""
    return run_config((read_run(path) if path else {}) | parse_overrides(overrides))


def located(config: RunConfig, output: Path) -> RunConfig:
    """The same with absolute paths: a run's processes do not run in the user's folder."""
    e, x = config.experiment, config.execution
    data_path = str(absolute(x.data_path)) if x.data_path else ""
    every = e.keys().values()
    own = {k.attribute: located_value(k, value) for k, value in every if k.name in _LOCATED}
    files = {k.attribute: located_value(k, value) for k, value in every if k.path}
    return RunConfig(
        e.replace(**own, options=replace(e.options, **files)),
        x.replace(output=str(absolute(output)), data_path=data_path),
    )


def located_value(key: Key, value: Any) -> Any:
    """The value of a key, absolute where it is a path, or holds one."""
    if key.name in _LOCATED:
        return key.parse(_LOCATED[key.name](str(key.text(value))))
    return str(absolute(value)) if key.path and value else value


def parse_overrides(overrides: Iterable[str]) -> dict[str, object]:
    """`key=value` texts as a flat mapping; values are what their keys take."""
    return {name: _value(text, all_keys().get(name)) for name, text in _pairs(overrides).items()}


def find_key(name: str) -> Key:
    """The key of that name. Raises UserError for an unknown one, with what it may mean."""
    known = all_keys()
    if name not in known:
        within = [other for other in known if other.startswith(f"{name}.")]
        if within:
            raise UserError(f"{name} is a section, not a key; its keys: {', '.join(within)}")
        raise UserError(f"unknown key {name!r}; {meant(name, known, 'pfedlora keys lists all')}")
    return known[name]


def _method_options(e: Experiment, method: type[Method]) -> dict[str, Any]:
    """The options of a `package.module:Class` method, from the text of `method-options`."""
    declared = keys_of(method.Options)
    given = {
        name: _value(text, declared.get(name)) for name, text in _words(e.method_options).items()
    }
    for name in given:
        if name not in declared:
            raise UserError(
                f"method-options: {e.method} has no option {name!r}; it has:"
                f" {', '.join(declared) or 'none'}"
            )
    return {k.attribute: k.parse(given[name]) for name, k in declared.items() if name in given}


def _pairs(overrides: Iterable[str]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"{text!r}: expected key=value")
        flat[name.strip()] = value
    return flat


def _words(text: str) -> dict[str, str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"method-options is {text!r}: {error}") from None
    if any("=" not in word.lstrip("=") for word in words):
        raise UserError(f"method-options is {text!r}; allowed: key=value key=value")
    return _pairs(words)


def _value(text: str, key: Key | None) -> object:
    """The value of a text that is for `key`."""
    return text if key is not None and key.kind is str else scalar(text)
