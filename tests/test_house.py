"""The floors of the house: a room imports from its own and from lower ones, never from a higher
one, and nothing imports in a circle."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import pfedlora_flwr
from pfedlora_flwr.commands import console
from scripts import spread
from tests.conftest import result_of

PACKAGE = Path(pfedlora_flwr.__file__).parent
FLOORS: tuple[tuple[str, ...], ...] = (
    ("version", "errors", "deadline", "keys", "rng", "files", "experiment", "execution"),
    ("training",),
    ("models",),
    ("data",),
    ("methods",),
    ("config",),
    ("runs",),
    ("observers",),
    ("federation", "site"),
    ("client_app", "server_app"),
    ("audit", "comparison", "launch"),
    ("report",),
    ("ops",),
    ("api", "commands"),
    ("cli",),
)
"""From the ground up; docs/architecture.md says what each room owns."""
OF_FEATURES = {
    "feature": "config",
    "rules": "config",
    "accountant": "runs",
    "audit": "audit",
    "audits": "audit",
    "budget": "runs",
    "demand": "config",
    "demands": "federation",
    "ledger": "federation",
    "record": "runs",
    "records": "runs",
    "tables": "report",
    "spent": "runs",
    "without": "runs",
    "link": "federation",
    "phase": "federation",
    "phases": "federation",
    "links": "federation",
    "plan": "launch",
    "plans": "launch",
    "table": "report",
}
"""A feature's files, by the room on whose floor they stand."""
FILES = {
    str(path.relative_to(PACKAGE).with_suffix("")).replace("/", "."): path
    for path in PACKAGE.rglob("*.py")
}
MODULES = {
    name.removesuffix(".__init__"): path for name, path in FILES.items() if name != "__init__"
}


@cache
def imports(path: Path) -> set[str]:
    """Our own modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == "pfedlora_flwr"
        ):
            module = (node.module or "").removeprefix("pfedlora_flwr").removeprefix(".")
            for alias in node.names:
                inner = f"{module}.{alias.name}".removeprefix(".")
                if inner in MODULES or module:
                    found.add(inner if inner in MODULES else module)
    return found


def floor(module: str) -> int:
    """A room's `keys.py` has keys of the Experiment, which stands on it. A feature's
    file stands where its name says."""
    room, _, name = module.partition(".")
    name = name.rpartition(".")[2]
    if name == "keys":
        return 0
    if room == "features":
        return floor(OF_FEATURES[name]) if name in OF_FEATURES else 0
    return next(i for i, rooms in enumerate(FLOORS) if module.split(".")[0] in rooms)


def test_nothing_imports_from_a_higher_floor() -> None:
    higher = [
        f"{module} imports {other}"
        for module in MODULES
        for other in imports(MODULES[module])
        if floor(other) > floor(module)
    ]
    assert not higher


def test_the_api_and_the_commands_stand_on_the_same_operations_and_not_on_each_other() -> None:
    users = {"api", "commands"}
    assert not [
        f"{module} imports {other}"
        for module in MODULES
        for other in imports(MODULES[module])
        if {module.split(".")[0], other.split(".")[0]} == users
    ]


def test_no_feature_imports_another() -> None:
    own = [module for module in MODULES if re.match(r"features\.\w+\.", module)]
    assert not [
        f"{module} imports {other}"
        for module in own
        for other in imports(MODULES[module])
        if re.match(r"features\.\w+\.", other) and other.split(".")[1] != module.split(".")[1]
    ]


OUTSIDE = {
    ("audit.audit", "features.audit.rules"),
    ("experiment", "features.dp.keys"),
    ("experiment", "features.held_out.keys"),
    ("experiment", "features.masks.keys"),
    ("experiment", "features.membership.keys"),
    ("report.gain_figure", "features.sharing.rules"),
    ("report.gains", "features.sharing.rules"),
}
"""Who imports a feature beside the lists and its own rooms, and which file. No line is added."""


def test_only_the_lists_import_features() -> None:
    own = re.compile(r"features\.|federation\.secure\.")
    found = {
        (module, other)
        for module in MODULES
        if not own.match(module)
        for other in imports(MODULES[module])
        if re.match(r"features\.\w+\.", other)
    }
    assert found == OUTSIDE


def test_nothing_imports_in_a_circle() -> None:
    TopologicalSorter(
        {module: imports(path) - {module} for module, path in MODULES.items()}
    ).prepare()


LONG = {
    "cli": "every command with its options, declared in one place",
    "experiment": "every key that can change a result, declared in one place",
}
"""Files of over 600 lines, with the reason."""


def test_the_hallway_is_short_and_no_file_is_long_without_a_reason() -> None:
    assert len([path for path in PACKAGE.glob("*.py") if path.stem != "__init__"]) <= 10
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name for name, n in lines.items() if n > 600} <= LONG.keys()


SPREAD = {
    "sharing": 3,
    "audit": 3,
    "differential privacy": 5,
    "held-out clients": 7,
    "membership of clients": 3,
    "Ray cluster": 9,
    "secure aggregation": 7,
    "own code": 11,
    "extension of a run": 5,
    "kinds of input": 11,
    "trackers": 1,
}
"""Files outside its own room that name a feature. A number may only fall."""


@pytest.mark.slow
def test_features_spread_no_further() -> None:
    code = spread.package("")
    found = {one.name: spread.outside(one, code) for one in spread.FEATURES}
    assert found.keys() == SPREAD.keys()
    assert not {name: files for name, files in found.items() if len(files) > SPREAD[name]}


@pytest.mark.slow
def test_a_run_needs_no_folder_of_a_feature_that_only_lists_name(tmp_path: Path) -> None:
    """Without it, and the lines that name it in the lists, a plain run comes to the same bits."""
    keys = ("method=fedavg", "models=cnn5", "dataset=synthetic:40", "clients=2", "rounds=1")
    command = [sys.executable, "-m", "pfedlora_flwr.cli", "run", "--engine", "local", "--quiet"]
    command += [word for key in (*keys, "partition.kind=iid") for word in ("-o", key)]
    found = {}
    for without in ("", "audit", "sharing"):
        root = tmp_path / f"without-{without}"
        copy = shutil.copytree(PACKAGE, root / PACKAGE.name)
        if without:
            shutil.rmtree(copy / "features" / without)
            for name in spread.LISTS:
                (copy / name).write_text(_without_lines((copy / name).read_text(), without))
        done = subprocess.run(
            [*command, "-o", f"output={root / 'run'}"],
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        result = result_of(root / "run")
        found[without] = result["shared_sha256"], result["models_sha256"]
    assert len(found) == 3
    assert len({*found.values()}) == 1


def _without_lines(text: str, feature: str) -> str:
    """A list without its imports from this feature, and what it has of them."""
    line = rf"(?m)^from pfedlora_flwr\.features\.{feature}\.\w+ import (\w+)\n"
    for name in re.findall(line, text):
        text = re.sub(rf", {name}\b(\(\))?", "", text)
        text = re.sub(rf"(?m)^ +\w+: {name} = .*\n", "", text)
    return re.sub(line, "", text)


def test_the_architecture_page_names_every_file() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert not [
        path.name
        for path in MODULES.values()
        if path.stem != "__init__" and f"`{path.name}`" not in page
    ]


def test_messages_below_the_commands_name_keys_and_no_flags() -> None:
    """`commands/console.py` alone writes them as flags. Whole commands in backticks may have
    some, and so may the help of a key."""
    of_ours = re.compile(
        rf"--(?:{console._TRUE}|{console._WITH_VALUE}|client|methods|seeds|only)\b"
    )
    declaring = "experiment", "execution"  # and the files of sections
    below = {name: path for name, path in MODULES.items() if floor(name) < floor("commands")}
    said = [
        (name, text)
        for name, path in (below | {n: p for n, p in MODULES.items() if n[:4] == "api."}).items()
        if not name.endswith((*declaring, ".keys")) and not name.startswith("launch.flower")
        for text in texts(path)
    ]
    quoted = re.compile(r"`[^`]*`|^--.*")  # the second: an argument of another program
    assert not [(name, text) for name, text in said if of_ours.search(quoted.sub("", text))]


def texts(path: Path) -> list[str]:
    """A module's texts that are no docstrings."""
    alone = set[int]()
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr):
            alone.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            alone |= {id(part) for part in parts}
            found.append("".join(str(part.value) for part in parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append("" if id(node) in alone else node.value)
    return found
