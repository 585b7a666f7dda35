"""Configuration files: which YAML file a name means, and its keys, unchecked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pfedlora_flwr.errors import UserError, meant

_NEAR = 0.75
"""From how alike a name is meant, from 0 to 1."""


def find_conf(name: str) -> Path:
    """The YAML file `name`, or the configuration of this name that comes with the package:
    `quickstart`, `quick/table2`.

    Raises UserError, with the names there are.
    """
    given, ours = Path(name), _own_confs()
    if given.exists() and not given.is_dir():
        return given
    for path in (ours / name, ours / f"{name}.yaml"):
        if path.is_file():
            return path
    if (given / "config.yaml").exists():
        told = f"a run's directory: to go on with it, resume=true and output={name}"
        raise UserError(f"{name}: {told}")
    names = sorted(
        path.relative_to(ours).with_suffix("").as_posix() for path in ours.rglob("*.yaml")
    )
    kind = "a folder" if name and given.is_dir() else "no such file"
    named = next((one for one in names if one.rpartition("/")[2] == given.stem), name)
    told = meant(named, names, f"those are {', '.join(names)}", _NEAR)
    raise UserError(f"{name or repr(name)}: {kind}, and not a configuration of the package; {told}")


def _own_confs() -> Path:
    """The folder `conf`: beside the package in a checkout, else installed inside it."""
    package = Path(__file__).parent.parent
    root = package.parent if (package.parent / "pyproject.toml").exists() else package
    return root / "conf"


def read_run(path: Path) -> dict[str, object]:
    """The keys in a run's YAML file, flattened with dots. Raises UserError for a file that is
    missing, no mapping, or a comparison's."""
    content = read_mapping(path)
    if "methods" in content:
        raise UserError(f"{path} is a comparison (it has methods): use pfedlora compare")
    if "about" in content:
        raise UserError(
            f"{path} is the file of a run (it has about): continue that by resume=true and"
            " output=…, or remove the section"
        )
    try:
        return flatten(content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_mapping(path: Path) -> dict[Any, Any]:
    """A YAML file's mapping as it stands. Raises UserError for a file that is missing or no
    mapping."""
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path}: not valid YAML at line {line}: it is not in UTF-8 (byte"
            f" 0x{error.object[error.start]:02x})"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
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
            if isinstance(value, dict):
                added = flatten(value, f"{prefix}{name}.")
            else:
                added = {f"{prefix}{name}": value}
        except RecursionError:
            raise UserError(f"{name} holds itself") from None
        twice = next((key for key in added if key in flat), None)
        if twice is not None:
            raise UserError(f"{twice} appears twice, under its section and with a dot")
        flat |= added
    return flat


class _Loader(yaml.SafeLoader):
    """Refuses a mapping in which a key is there twice: of two values one would be ignored. Numbers
    are as people read them: to YAML 1.1 010 is 8 and 1:30 is 90."""

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
        if ":" in node.value:
            return loader.construct_scalar(node)
        return loader.construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)


def scalar(text: str) -> object:
    """What YAML reads in one word: a number, true or false; anything else is the text."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text
