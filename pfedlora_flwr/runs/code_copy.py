"""The user's own code in the run's directory: a copy with its hashes, which reveal changed code.

The copy holds the modules that `models`, `method`, `dataset` and `observers` name
(`package.module:Class`) and those that they import from the same folder: Python files alone, never
data, and nothing of what is installed."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import logging
import os
import shlex
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfedlora_flwr.data.registry import is_function
from pfedlora_flwr.errors import UserError, permissions, some
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.models.given import is_given
from pfedlora_flwr.models.named import LIBRARIES
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.records import read_json

logger = logging.getLogger(__name__)
_MOST_FILES, _MOST_BYTES = 100, 2**20
_BEFORE = "until-round-"
"""How the folders begin that keep what the copy held before it was changed: no module's name."""
_LEFT_OUT = "left-out.txt"
_HASHES = "code.json"
"""The code of each start, oldest first: after which round it began, and its files' SHA-256."""
Hashes = dict[str, str]
"""SHA-256 by a file's path from the folder in which Python finds it."""


@dataclass
class OwnCode:
    """Files by their path from the folder in which Python finds them; and the paths of those beyond
    the bounds. hashes: of all of them."""

    files: dict[str, bytes] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    hashes: Hashes = field(default_factory=dict)

    @property
    def warning(self) -> str:
        """A line on what is left out; empty if nothing is."""
        if not self.left_out:
            return ""
        bounds = (
            f"at most {_MOST_FILES} files and {_MOST_BYTES // 2**20} MiB of your own code are"
            " copied to the run's `source`"
        )
        return f"{bounds}; left out: {some(self.left_out)}"


@dataclass(frozen=True)
class Changed:
    """The files by which the code here differs from the code that did a run's last rounds."""

    files: tuple[str, ...]

    def __str__(self) -> str:
        return some(self.files)


def collect(keys: Mapping[str, object]) -> OwnCode:
    """The user's own code that an Experiment's flat keys name, with what it imports, nearest first.
    Nothing is executed."""
    named = _own_modules(keys)
    roots = list(dict.fromkeys(root for module in named for root in _roots(module)))
    source, seen, waiting = OwnCode(), set[str](), deque(named)
    while waiting:
        parts = waiting.popleft().split(".")
        for name in (".".join(parts[: i + 1]) for i in range(len(parts))):
            found = None if name in seen else _file(roots, name)
            seen.add(name)
            if found is None:
                continue
            root, file = found
            path, text = file.relative_to(root).as_posix(), file.read_bytes()
            source.hashes[path] = _sha256(text)
            size = sum(map(len, source.files.values())) + len(text)
            if len(source.files) == _MOST_FILES or size > _MOST_BYTES:
                source.left_out.append(path)
                continue
            source.files[path] = text
            waiting.extend(_imported(name, file, text))
    return source


def keep(run: RunDirectory, config: RunConfig, after: int) -> None:
    """Copies the user's own code to the run's `source`, with its hashes. Where it is not at hand,
    which nodes' models need not be, nothing changes.

    after: the round after which the run goes on. What was copied before and has changed since stays
    in `until-round-N` there."""
    found, held, told = collect(config.flat()), _held(run), _told(run)
    if not found.hashes or (told and found.hashes == told[-1]["files"]):
        return
    before = run.source / f"{_BEFORE}{after:06d}"
    if held and held != found.files and not before.exists():  # else what is held has done no round
        _write(before, held)
    for path in held.keys() - found.files.keys():
        (run.source / path).unlink()
    _write(run.source, found.files)
    (run.source / _LEFT_OUT).unlink(missing_ok=True)
    if found.left_out:
        write_atomically(
            run.source / _LEFT_OUT, "".join(f"{path}\n" for path in found.left_out).encode()
        )
        logger.warning("%s", found.warning)
    # what began after the same round has done none
    begun = [start for start in told if start["after-round"] < after]
    whole = _sha256(json.dumps(found.hashes, sort_keys=True).encode())
    begun.append({"after-round": after, "sha256": whole, "files": found.hashes})
    write_atomically(run.source / _HASHES, (json.dumps(begun, indent=1) + "\n").encode())


def codes_of(run: RunDirectory) -> list[str]:
    """The SHA-256 of the user's own code in each of the run's starts that changed it, oldest first;
    empty where it has none."""
    return [start["sha256"] for start in _told(run)]


def hashes_of(run: RunDirectory) -> Hashes:
    """The SHA-256 of the files of the user's own code that did the run's last rounds."""
    told = _told(run)
    return told[-1]["files"] if told else {}


def differing_files(was: Hashes, now: Hashes) -> list[str]:
    """The files that are not the same in both, or in one of them alone."""
    return [path for path in dict.fromkeys([*was, *now]) if was.get(path) != now.get(path)]


def changed(run: RunDirectory, keys: Mapping[str, object]) -> Changed | None:
    """By which files the user's own code here differs from the run's; None where it does not, or is
    not at hand. Nothing is executed.

    keys: the Experiment's, flat."""
    told = _told(run)
    here = collect(keys).hashes if told else {}
    if not told or not here:
        return None
    files = differing_files(told[-1]["files"], here)
    return Changed(tuple(files)) if files else None


def check_unchanged(run: RunDirectory, config: RunConfig) -> None:
    """Raises UserError if a run goes on with other code of the user's than its rounds were done
    with, unless `accept-changed-code` is set."""
    experiment, execution = config.experiment, config.execution
    if execution.accept_changed_code or not (execution.resume and run.holds_run):
        return
    last = run.last_round()
    if last == experiment.rounds or not run.checkpoints.rounds():
        return
    if found := changed(run, config.flat()):
        plural = len(found.files) > 1
        raise UserError(
            f"{found} {'have' if plural else 'has'} changed since round {last} of {run.path}"
            f" (its copy is in {run.source}); undo that, go on with the code as it is by"
            " accept-changed-code=true, or start again with overwrite=true (a"
            " comparison's with redo=…)"
        )


def note_of(run: RunDirectory) -> str:
    """A line that the user's own code here is not what the run's rounds were done with; else empty.
    Raises UserError, with the command that uses the run's copy, where it cannot be imported."""
    if not run.holds_run or not _told(run):
        return ""
    keys = run.saved_keys()
    check_importable(keys, run.source)
    found = changed(run, keys)
    return (
        f"{found} differs from the run's copy in {run.source}, which is not used" if found else ""
    )


def check_importable(keys: Mapping[str, object], source: Path) -> None:
    """Raises UserError, with the command that uses the copy of them in `source`, where the user's
    own modules cannot be imported and it has them."""
    missing = [
        module
        for module in _own_modules(keys)
        if not _importable(module) and _file([source], module)
    ]
    if missing:
        command = shlex.join(["pfedlora", *sys.argv[1:]])
        raise UserError(
            f"module {', '.join(missing)} cannot be imported from {os.getcwd()}; the run has a copy"
            f" of it: PYTHONPATH={shlex.quote(str(source.absolute()))} {command}"
        )


def named_modules(keys: Mapping[str, object]) -> list[str]:
    """The modules that a run's flat keys name: those of models (libraries' among them),
    method, dataset and observers."""
    dataset = str(keys.get("dataset", ""))
    names = [
        *str(keys["models"]).split(","),
        str(keys["method"]),
        *([dataset] if is_function(dataset) else []),
        *str(keys.get("observers", "")).split(","),
    ]
    return list(dict.fromkeys(name.strip().partition(":")[0] for name in names if ":" in name))


def _own_modules(keys: Mapping[str, object]) -> list[str]:
    """Of those the user's, as far as this machine allows them."""
    return [
        module
        for module in named_modules(keys)
        if _top(module) not in (*LIBRARIES, _top(__name__))
        and not is_given(module)
        and permissions.allows_module(module)
    ]


def is_installed(found: type) -> bool:
    """Whether a class is Python's or an installed library's, not the user's own."""
    module = found.__module__
    try:
        there = module != "__main__" and importlib.util.find_spec(_top(module)) is not None
    except (ImportError, ValueError):
        return False
    return there and not _roots(module)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _roots(module: str) -> list[Path]:
    """The folders in which Python finds the module's outermost package; none for what is installed
    or part of Python."""
    try:
        spec = importlib.util.find_spec(_top(module))
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    places = [*(spec.submodule_search_locations or ())] or (
        [spec.origin] if spec.origin and spec.has_location else []
    )
    return [
        r
        for r in [Path(place).absolute().parent for place in places]
        if not {"site-packages", "dist-packages"} & {*r.parts}
        and not r.is_relative_to(sysconfig.get_path("stdlib"))
    ]


def _file(roots: list[Path], module: str) -> tuple[Path, Path] | None:
    """The module's file, and the folder of those given in which it is; a package's is its
    `__init__.py`."""
    if _top(module) == _top(__name__):
        return None
    inside = module.replace(".", "/")
    found = (
        (root, root / path) for root in roots for path in (f"{inside}/__init__.py", f"{inside}.py")
    )
    return next(((root, file) for root, file in found if file.is_file()), None)


def _imported(module: str, file: Path, text: bytes) -> Iterator[str]:
    """The names that a module imports, wherever in it; an object's name may be among them."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # who imports it is told
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # beyond the outermost package
                continue
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _importable(module: str) -> bool:
    """Whether the module's file is found; one whose package raises is, and its import will say
    what."""
    try:
        # a mere folder of that name has none
        return getattr(importlib.util.find_spec(module), "origin", None) is not None
    except ModuleNotFoundError:
        return False
    except (Exception, SystemExit):
        return True


def _told(run: RunDirectory) -> list[dict[str, Any]]:
    """The code of the run's starts, as it was kept."""
    return read_json(run.source / _HASHES) or []


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _held(run: RunDirectory) -> dict[str, bytes]:
    files = {
        file.relative_to(run.source).as_posix(): file for file in sorted(run.source.rglob("*.py"))
    }
    return {path: file.read_bytes() for path, file in files.items() if not path.startswith(_BEFORE)}


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / path, text)
