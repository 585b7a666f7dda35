"""Experiments, read and checked: from a YAML file, from `key=value` texts and from Flower's run-config alike."""

from __future__ import annotations

import difflib
import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pfedlora_flwr.data import registry as datasets
from pfedlora_flwr.data.partition import KINDS
from pfedlora_flwr.data.source import Reading, parse_shape
from pfedlora_flwr.errors import UserError, user_code
from pfedlora_flwr.experiment import KEYS, Experiment, option_keys
from pfedlora_flwr.files import absolute
from pfedlora_flwr.keys import Key, keys_of
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.models import registry as models

_MOST_MASKED = 1023
"""Clients whose masked updates can be summed: 1024 of the 2^22 levels would leave the 2^32."""
_NOT_MASKED = ("clip-norm-factor", "max-samples")
"""Keys of checks that a server makes of single updates."""
_OF_PARTITION = {
    "partition.classes-per-client": "pathological",
    "partition.alpha": "dirichlet",
    "partition.min-samples": "natural",
}
"""Keys of one kind of partition."""


@cache
def all_keys() -> dict[str, Key]:
    """Every key by name: the Experiment's, with what the data room allows, then each method's own."""
    target = KEYS["target-accuracy"]
    found = KEYS | {
        "dataset": replace(KEYS["dataset"], choices=datasets.NAMES),
        "partition.kind": replace(KEYS["partition.kind"], choices=KINDS),
        "target-accuracy": replace(target, meaning=f"{target.meaning} ({datasets.targets()})"),
    }
    for name in registry.NAMES:
        found |= option_keys(name, registry.find(name).Options)
    return found


def from_flat(flat: Mapping[str, object]) -> Experiment:
    """An Experiment from flat keys (run-config). Raises UserError for an unknown key, a wrong type, a value out of range.

    Options of other methods than its own are checked and left out: one file may serve several methods.
    """
    parsed = parse(flat)
    experiment = Experiment(
        **{KEYS[name].attribute: value for name, value in parsed.items() if name in KEYS}
    )
    method = registry.find(experiment.method)
    own = option_keys(experiment.method, method.Options)
    given = {k.attribute: parsed[name] for name, k in own.items() if name in parsed}
    if ":" in experiment.method:
        given = _method_options(experiment, method)
    experiment = experiment.replace(options=method.Options(**given))
    _check(experiment, method)
    return experiment


def parse(flat: Mapping[str, object]) -> dict[str, Any]:
    """The values of flat keys, each by itself. Raises UserError for an unknown key, a wrong type, a value out of range."""
    return {name: _key(name).parse(value) for name, value in flat.items()}


def load(path: Path | None, overrides: Iterable[str] = ()) -> Experiment:
    """An Experiment from a YAML file and `key=value` overrides (later ones win)."""
    return from_flat((read_run(path) if path else {}) | parse_overrides(overrides))


def located(e: Experiment, output: Path) -> Experiment:
    """`e` with absolute paths: its processes do not run in the user's folder."""
    data_path = str(absolute(e.data_path)) if e.data_path else ""
    named = {"dataset": datasets.located(e.dataset), "models": models.located(e.models)}
    return e.replace(output=str(absolute(output)), data_path=data_path, **named)


def unused(options: Iterable[str], e: Experiment) -> list[str]:
    """Why options that were given for `e` change nothing in it, a line each."""
    found, own = [], e.keys()
    for name in options:
        if name not in own:
            found.append(f"{name} is not used: it is an option of another method than {e.method}")
        elif name == "data-path" and e.data_path and not datasets.takes_path(e.dataset):
            found.append(f"data-path is not used: dataset {e.dataset!r} takes no files from there")
        elif name == "momentum" and e.optimizer == "adamw":
            found.append("momentum is not used: optimizer is adamw, whose own is 0.9")
        elif name.startswith("data.") and name not in datasets.find(e.dataset).columns:
            found.append(f"{name} is not used: dataset {e.dataset!r} has no such columns")
        elif name in _OF_PARTITION and e.partition_kind != _OF_PARTITION[name]:
            found.append(f"{name} is not used: partition.kind is {e.partition_kind}")
        elif name.startswith("secagg.") and not e.secagg_enabled and name != "secagg.enabled":
            found.append(f"{name} is not used: secagg.enabled is false")
        elif name in _NOT_MASKED and e.secagg_enabled:
            found.append(
                f"{name} is not used: with secagg.enabled the server sees no single update"
            )
    return found


def _key(name: str) -> Key:
    known = all_keys()
    if name not in known:
        within = [other for other in known if other.startswith(f"{name}.")]
        if within:
            raise UserError(f"{name} is no key but a section of keys: {', '.join(within)}")
        near = difflib.get_close_matches(name, known, 1)
        raise UserError(
            f"unknown key {name!r}"
            + (f"; did you mean {near[0]!r}?" if near else "; see pfedlora run --help")
        )
    return known[name]


def _method_options(e: Experiment, method: type[Method]) -> dict[str, Any]:
    """The options of a `package.module:Class` method, from the text of `method-options`."""
    declared = keys_of(method.Options)
    given = {
        name: _scalar(text, declared.get(name)) for name, text in _words(e.method_options).items()
    }
    for name in given:
        if name not in declared:
            raise UserError(
                f"method-options: {e.method} has no option {name!r}; it has: {', '.join(declared) or 'none'}"
            )
    return {k.attribute: k.parse(given[name]) for name, k in declared.items() if name in given}


def _check(e: Experiment, method: type[Method]) -> None:
    """What no single key can be checked for. Raises UserError."""
    with user_code("method", e.method):
        method.check_experiment(e)
    if e.method_options and ":" not in e.method:
        own = ", ".join(option_keys(e.method, method.Options))
        told = f"method-options is {e.method_options!r}, which is for a package.module:Class method"
        raise UserError(f"{told}; the options of {e.method} are keys: {own or 'it has none'}")
    if e.min_clients is not None and e.min_clients > e.clients:
        raise UserError(
            f"min-clients is {e.min_clients}; allowed: auto, or at most clients, which is {e.clients}"
        )
    names = Reading.of(e).class_names
    if len(set(names)) < len(names) or "" in names or len(names) == 1:
        raise UserError(
            f"data.class-names is {e.data_class_names!r}; allowed: auto, or at least two names, each once"
        )
    shape = parse_shape(e.input_shape) if e.input_shape else None
    if shape and e.image_size and shape[1:] != (e.image_size, e.image_size):
        raise UserError(
            f"image-size is {e.image_size}, and input-shape {e.input_shape}: make them equal, or leave one out"
        )
    if e.audit_uploads and e.sharing != "mean":
        raise UserError(
            f"audit.uploads is true and sharing is {e.sharing}; uploads are kept with sharing=mean alone"
        )
    if e.audit_uploads and e.secagg_enabled:
        raise UserError(
            "audit.uploads is true and secagg.enabled, too: under masks no upload can be kept; audit such a run from its sum"
        )
    if e.secagg_enabled:
        _check_secagg(e, method)
    check_way(e)
    if e.extend and not e.resume:
        raise UserError("extend is true; allowed: only with resume, of which it is a part")


def _check_secagg(e: Experiment, method: type[Method]) -> None:
    if not method.averages:
        fitting = ", ".join(name for name in registry.NAMES if registry.find(name).averages)
        raise UserError(
            f"method {e.method} does not take a mean of uploads; secagg.enabled needs one that does: {fitting}"
        )
    if e.sharing != "mean":
        raise UserError(f"sharing is {e.sharing}; allowed with secagg.enabled: mean")
    if not 3 <= e.sampled <= _MOST_MASKED:
        told = f"clients × participation gives {e.sampled}"
        raise UserError(f"secagg.enabled needs 3 to {_MOST_MASKED} sampled clients, {told}")
    if math.frexp(e.secagg_clip)[0] != 0.5:
        raise UserError(
            f"secagg.clip is {e.secagg_clip:g}; allowed: a power of two, such as 0.5, 1 or 2"
        )
    if e.secagg_shares is not None and e.secagg_shares % 2 == 0:
        raise UserError(f"secagg.shares is {e.secagg_shares}; allowed: auto, or an odd integer ≥ 5")


def find_conf(name: str) -> Path:
    """The YAML file `name`, or the configuration of this name that comes with the package: `quickstart`, `quick/table2`.

    Raises UserError, with the names there are.
    """
    given, ours = Path(name), _own_confs()
    if given.exists() and not given.is_dir():
        return given
    for path in (ours / name, ours / f"{name}.yaml"):
        if path.is_file():
            return path
    names = sorted(
        path.relative_to(ours).with_suffix("").as_posix() for path in ours.rglob("*.yaml")
    )
    raise UserError(
        f"{name or repr(name)}: no such file, and no configuration that comes with pfedlora; those are {', '.join(names)}"
    )


def _own_confs() -> Path:
    """The folder `conf`: beside the package in a checkout, else installed inside it."""
    package = Path(__file__).parent
    root = package.parent if (package.parent / "pyproject.toml").exists() else package
    return root / "conf"


def check_way(e: Experiment) -> None:
    """Raises UserError where a run shall be both continued and replaced."""
    if e.resume and e.overwrite:
        raise UserError(
            "resume and overwrite exclude each other: resume continues the run, overwrite replaces it"
        )


def read_run(path: Path) -> dict[str, object]:
    """The keys in a run's YAML file, flattened with dots. Raises UserError for a file that is missing, no mapping, or a comparison's."""
    content = read_mapping(path)
    if "methods" in content:
        raise UserError(f"{path} is a comparison (it has methods): use pfedlora compare")
    if "about" in content:
        raise UserError(
            f"{path} is what a run has left (it has about): continue it by --resume -o output=…, or remove that section"
        )
    try:
        return flatten(content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_mapping(path: Path) -> dict[Any, Any]:
    """A YAML file's mapping as it stands. Raises UserError for a file that is missing or no mapping."""
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path}: not valid YAML at line {line}: it is not in UTF-8 (byte 0x{error.object[error.start]:02x})"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark, problem = (
            getattr(error, "problem_mark", None),
            getattr(error, "problem", None) or str(error),
        )
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UserError(f"{path}: not valid YAML{where}: {' '.join(problem.split())}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: expected `key: value` lines, found {type(loaded).__name__}")
    return loaded


def flatten(nested: Mapping[Any, object], prefix: str = "") -> dict[str, object]:
    """Nested mappings as flat keys with dots."""
    flat: dict[str, object] = {}
    for name, value in nested.items():
        try:
            added = (
                flatten(value, f"{prefix}{name}.")
                if isinstance(value, dict)
                else {f"{prefix}{name}": value}
            )
        except RecursionError:
            raise UserError(f"{name} holds itself") from None
        twice = next((key for key in added if key in flat), None)
        if twice is not None:
            raise UserError(f"{twice} is there twice, under its section and with a dot")
        flat |= added
    return flat


class _Loader(yaml.SafeLoader):
    """Refuses a mapping in which a key is there twice: of two values one would be ignored. Numbers are as people read them:
    to YAML 1.1 010 is 8 and 1:30 is 90."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} is there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _number(loader: _Loader, node: yaml.ScalarNode) -> object:
    try:
        return int(node.value) if node.value.lstrip("+-").isdecimal() else int(node.value, 0)
    except ValueError:
        return (
            loader.construct_scalar(node)
            if ":" in node.value
            else loader.construct_yaml_float(node)
        )


_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)


def parse_overrides(overrides: Iterable[str]) -> dict[str, object]:
    """`key=value` texts as a flat mapping; values are what their keys take."""
    return {name: _scalar(text, all_keys().get(name)) for name, text in _pairs(overrides).items()}


def _pairs(overrides: Iterable[str]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"-o {text!r}: expected key=value")
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


def _scalar(text: str, key: Key | None) -> object:
    """The value of a text that is for `key`."""
    if key is not None and key.kind is str:
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError):
        return text
    return value if isinstance(value, bool | int | float) else text
