"""The user's own code in the run's directory: a copy of it, and its use where that code cannot be imported.

The copy holds the modules that `models`, `method` and `dataset` name (`package.module:Class`) and those that they import from the same
folder: Python files alone, never data, and nothing of what is installed.
"""

from __future__ import annotations

import ast
import importlib.util
import logging
import os
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pfedlora_flwr.data.registry import is_function
from pfedlora_flwr.errors import some
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.models.named import LIBRARIES
from pfedlora_flwr.runs.directory import RunDirectory

logger = logging.getLogger(__name__)
_MOST_FILES, _MOST_BYTES = 100, 2**20
_BEFORE = "until-round-"
"""How the folders begin that keep what the copy held before it was changed: no module's name."""
_LEFT_OUT = "left-out.txt"
_NAMED = 10
"""Files that a line names."""


@dataclass
class Source:
    """Files by their path from the folder in which Python finds them; and the paths of those beyond the bounds."""

    files: dict[str, bytes] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @property
    def warning(self) -> str:
        """A line on what is left out; empty where nothing is."""
        if not self.left_out:
            return ""
        bounds = f"at most {_MOST_FILES} files and {_MOST_BYTES // 2**20} MiB of one's own code are copied to the run's `source`"
        return f"{bounds}; left out: {some(self.left_out, _NAMED)}"


def collect(keys: Mapping[str, object]) -> Source:
    """The user's own code that an Experiment's flat keys name, with what it imports, nearest first. Nothing is executed."""
    named = _own_modules(keys)
    roots = list(dict.fromkeys(root for module in named for root in _roots(module)))
    source, seen, waiting = Source(), set[str](), deque(named)
    while waiting:
        parts = waiting.popleft().split(".")
        for name in (".".join(parts[: i + 1]) for i in range(len(parts))):
            found = None if name in seen else _file(roots, name)
            seen.add(name)
            if found is None:
                continue
            root, file = found
            path = file.relative_to(root).as_posix()
            size = sum(map(len, source.files.values())) + file.stat().st_size
            if len(source.files) == _MOST_FILES or size > _MOST_BYTES:
                source.left_out.append(path)
                continue
            source.files[path] = file.read_bytes()
            waiting.extend(_imported(name, file, source.files[path]))
    return source


def keep(run: RunDirectory, experiment: Experiment, after: int) -> None:
    """Copies the user's own code to the run's `source`. Where it is not at hand, which nodes' models need not be, nothing changes.

    after: the round after which the run goes on. What was copied before and has changed since stays in `until-round-N` there.
    """
    found, held = collect(experiment.flat()), _held(run)
    if not found.files or found.files == held:
        return
    before = run.source / f"{_BEFORE}{after:06d}"
    if held and not before.exists():  # else what is held has done no round
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


def use_copy(run: RunDirectory) -> str:
    """Has the run's own modules that cannot be imported here imported from its copy of them.

    A line that says so, or that what is imported differs from the copy; else empty.
    """
    held = _held(run) if run.holds_run else {}
    if not held:
        return ""
    keys = run.saved_keys()
    missing = [
        module
        for module in _own_modules(keys)
        if not _importable(module) and _file([run.source], module)
    ]
    if not missing:
        here = collect(keys).files
        changed = [path for path, text in held.items() if here.get(path, text) != text]
        return (
            f"{some(changed, _NAMED)} has changed: the run's copy in {run.source} is another, and not used"
            if changed
            else ""
        )
    for name in [
        name for name in sys.modules if any(_top(name) == _top(module) for module in missing)
    ]:
        del sys.modules[name]
    sys.dont_write_bytecode = True  # a run's directory is read
    sys.path.insert(0, str(run.source.absolute()))
    return f"module {', '.join(missing)} cannot be imported from {os.getcwd()}: the run's copy in {run.source} is used"


def named_modules(keys: Mapping[str, object]) -> list[str]:
    """The modules that an Experiment's flat keys name: those of models (libraries' among them), method and dataset."""
    dataset = str(keys.get("dataset", ""))
    names = [
        *str(keys["models"]).split(","),
        str(keys["method"]),
        *([dataset] if is_function(dataset) else []),
    ]
    return list(dict.fromkeys(name.strip().partition(":")[0] for name in names if ":" in name))


def _own_modules(keys: Mapping[str, object]) -> list[str]:
    """Of those the user's."""
    return [
        module for module in named_modules(keys) if _top(module) not in (*LIBRARIES, _top(__name__))
    ]


def _top(module: str) -> str:
    return module.partition(".")[0]


def _roots(module: str) -> list[Path]:
    """The folders in which Python finds the module's outermost package; none for what is installed or part of Python."""
    try:
        spec = importlib.util.find_spec(_top(module))
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    places = [*(spec.submodule_search_locations or ())] or (
        [spec.origin] if spec.origin and spec.has_location else []
    )
    roots = [Path(place).absolute().parent for place in places]
    return [
        r
        for r in roots
        if not {"site-packages", "dist-packages"} & {*r.parts}
        and not r.is_relative_to(sysconfig.get_path("stdlib"))
    ]


def _file(roots: list[Path], module: str) -> tuple[Path, Path] | None:
    """The module's file, and the folder of those given in which it is; a package's is its `__init__.py`."""
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
    """Whether the module's file is found; one whose package raises is, and its import will say what."""
    try:
        return (
            getattr(importlib.util.find_spec(module), "origin", None) is not None
        )  # a mere folder of that name has none
    except ModuleNotFoundError:
        return False
    except (Exception, SystemExit):
        return True


def _held(run: RunDirectory) -> dict[str, bytes]:
    files = {
        file.relative_to(run.source).as_posix(): file for file in sorted(run.source.rglob("*.py"))
    }
    return {path: file.read_bytes() for path, file in files.items() if not path.startswith(_BEFORE)}


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / path, text)
