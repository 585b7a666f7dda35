"""What a run's keys may name on this machine: own code, files and downloads.

On a node and on a SuperLink's host run-config is data of whoever submits. There a run names only
what the process was started with: a node its node-config, a ServerApp the variable VARIABLE. On the
user's own machine (commands, Python, simulations) it names anything."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedlora_flwr.errors.errors import UserError

VARIABLE = "PFEDLORA_SERVER_ALLOWS"
"""The environment's variable with what a ServerApp allows, in the form of a node-config."""
CODE, DATA, WEIGHTS, DOWNLOADS = NODE_KEYS = (
    "allow-code",
    "data-root",
    "weights-root",
    "allow-downloads",
)
"""The keys of a node-config that allow something."""
OUTPUT = "output-root"
ANCHORS = "anchors"
"""The key of a node-config with the node's own copy of a run's anchors, or SENT."""
SENT = "sent"
"""The node takes those that the server sends."""
_FLOWERS, _SERVER, _SIMULATION = ("flwr-", "flower-"), "flwr-serverapp", "flwr-simulation"


class NotAllowed(UserError):
    """A run's key names what this machine does not allow; its line says what to set, and where."""


@dataclass(frozen=True)
class Permissions:
    """What a run may name. Nothing is the default.

    code: modules. data, weights, output: the folders below which files may lie; empty: none.
    own: values that this machine's own settings name. sent: the folder of anchors that servers
    sent; empty: none are taken. whose, where: in words, whose they are and
    where they are set. anything: whether all is allowed."""

    code: frozenset[str] = frozenset()
    data: str = ""
    weights: str = ""
    downloads: bool = False
    output: str = ""
    own: frozenset[str] = frozenset()
    sent: str = ""
    whose: str = "this node"
    where: str = "its node-config"
    anything: bool = False

    def root(self, key: str) -> str:
        """The folder that the setting `key` names."""
        return {DATA: self.data, WEIGHTS: self.weights, OUTPUT: self.output}[key]


ANYTHING = Permissions(anything=True)
"""On the user's own machine."""
_HELD: ContextVar[Permissions | None] = ContextVar("_HELD", default=None)


@contextmanager
def held(permissions: Permissions) -> Iterator[None]:
    """Within it these permissions hold."""
    token = _HELD.set(permissions)
    try:
        yield
    finally:
        _HELD.reset(token)


def of_server() -> Permissions:
    """What VARIABLE allows a ServerApp. Raises UserError for one that cannot be read."""
    try:
        words = shlex.split(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        raise UserError(f"{VARIABLE} cannot be read: {error}") from None
    given = dict(word.partition("=")[::2] for word in words)
    if unknown := [name for name in given if name not in (*NODE_KEYS, OUTPUT)]:
        raise UserError(
            f"{VARIABLE} names {unknown[0]!r}; allowed: {', '.join((*NODE_KEYS, OUTPUT))}"
        )
    downloads = given.get(DOWNLOADS, "false").lower()
    if downloads not in ("true", "false"):
        raise UserError(
            f"{DOWNLOADS} is {given[DOWNLOADS]!r} in {VARIABLE}; allowed: true or false"
        )
    return Permissions(
        code=frozenset(given.get(CODE, "").split()),
        data=given.get(DATA, ""),
        weights=given.get(WEIGHTS, ""),
        downloads=downloads == "true",
        output=given.get(OUTPUT, ""),
        whose="the server",
        where=VARIABLE,
    )


def output_root() -> str:
    """The folder below which runs may lie here; empty: none is set."""
    return _now().output


def own_machine() -> bool:
    """Whether this is the user's own machine, as far as is known."""
    return _now().anything


def said_own_machine() -> bool:
    """Whether an engine on the user's own machine has said so."""
    return _HELD.get() is ANYTHING


@contextmanager
def own_choice(value: str) -> Iterator[None]:
    """Within it anything may be named for a value that this machine's own settings hold; for any
    other nothing changes."""
    with held(ANYTHING if value in _now().own else _now()):
        yield


def allows_module(module: str) -> bool:
    """Whether a run may name code in this module."""
    return _now().anything or module in _now().code


def check_code(what: str, name: str) -> None:
    """Asks before the module of `module:name` is imported, which executes it. Raises NotAllowed.

    what: model, method, dataset or observer."""
    now, module = _now(), name.partition(":")[0]
    if not allows_module(module):
        raise NotAllowed(
            f"{what} {name!r} is code, of which {now.whose} allows {' '.join(sorted(now.code))}"
            f"{'' if now.code else 'none'}: set {CODE}={module!r} in {now.where}"
        )


def check_defined(what: str, name: str, found: object) -> None:
    """Asks before the object at `module:name` is used: it must be defined there, and not only
    imported. Raises NotAllowed."""
    now, module = _now(), name.partition(":")[0]
    if not (now.anything or getattr(found, "__module__", None) == module):
        raise NotAllowed(
            f"{what} {name!r} is not defined in {module!r}, as code that {now.whose} allows must be"
        )


def check_file(what: str, path: str, key: str, also: str = "") -> None:
    """Asks before the file or folder that a run's key names is looked at: it must lie below the
    folder that the setting `key` names, and so must all in it, wherever links lead. Raises
    NotAllowed, which tells nothing of what is there.

    what: the run's key. also: another folder, of a library's."""
    now = _now()
    if now.anything or (what in ("data-path", "representation") and path in now.own):
        return
    if what == "representation" and now.sent and Path(path).parent == Path(now.sent):
        return
    root = now.root(key)
    allowed = path.startswith(("/", "~")) and any(_all_below(path, r) for r in (root, also) if r)
    if not allowed:
        told = f"allows only files below its {key}" if root else "allows no such file"
        raise NotAllowed(
            f"{what} names {path!r}, and {now.whose} {told}: set {key} to a folder above it in"
            f" {now.where}"
        )


def check_download(what: str, name: str) -> None:
    """Asks before anything is fetched, or taken of what was. Raises NotAllowed."""
    now = _now()
    if not (now.anything or now.downloads):
        raise NotAllowed(
            f"{what} {name!r} is downloaded, and {now.whose} allows no downloads: set"
            f" {DOWNLOADS}=true in {now.where}"
        )


def sent_anchors(node_config: Mapping[str, Any]) -> Path | None:
    """The folder of the anchors that servers sent, by their hash, where the node takes such. Raises
    UserError without a place for it."""
    if node_config.get(ANCHORS) != SENT:
        return None
    if "state-path" not in node_config:
        raise UserError("anchors is sent; allowed with it: a state-path in the node-config")
    return Path(str(node_config["state-path"])).expanduser().absolute() / ANCHORS


def _now() -> Permissions:
    """What holds here. Of Flower's processes a simulation alone is on the user's own machine."""
    if (said := _HELD.get()) is not None:
        return said
    command = Path(sys.argv[0]).stem.replace("_", "-")
    if not command.startswith(_FLOWERS) or command == _SIMULATION:
        return ANYTHING
    return of_server() if command == _SERVER else Permissions()


def _all_below(path: str, root: str) -> bool:
    """Whether the file, or the folder and all in it, lies below `root` once links are followed."""
    try:
        top, seen, waiting = Path(root).expanduser().resolve(), set[Path](), [Path(path)]
        while waiting:
            found = waiting.pop().expanduser().resolve()
            if not found.is_relative_to(top):
                return False
            if found not in seen and found.is_dir():
                seen.add(found)
                waiting += [Path(e) for e in os.scandir(found) if e.is_symlink() or e.is_dir()]
    except (OSError, RuntimeError, ValueError):  # a circle of links, no access, a null character
        return False
    return True
