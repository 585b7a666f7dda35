"""Writes what the code declares into the files that repeat it: `make docs`.

docs/keys.md: every configuration key. docs/cli.md: the help of every command. docs/output.md: every field of the files that programs read.
pfedlora_flwr/api/typed_keys.pyi: the keys with their types, as arguments of the API. pfedlora_flwr/ops/known.json: keys, methods and datasets for who asks without PyTorch.
pyproject.toml: every key's default, for `flwr run`, and the version, which Flower reads there (it
takes no dynamic one). CITATION.cff: the version and the project's address. A test holds all of them
equal to the code."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path

import click

from pfedlora_flwr import execution, experiment
from pfedlora_flwr.cli import commands
from pfedlora_flwr.commands import listing
from pfedlora_flwr.config import all_keys
from pfedlora_flwr.data import registry as datasets
from pfedlora_flwr.experiment import option_keys
from pfedlora_flwr.keys import FUNCTION, Key
from pfedlora_flwr.launch.flower import COMPONENTS
from pfedlora_flwr.methods import registry
from pfedlora_flwr.ops import align, evaluate
from pfedlora_flwr.runs import audits, rows, status
from pfedlora_flwr.version import __version__

_FORMAT = 'fab-format-version = 1\nflwr-version-target = "1.41.0"\n'
"""Flower Hub's own apps have this format. The generated apps of `pfedlora run` have no licence
file, and stay without it."""
OF_APP = {"clients": "auto", "partition.classes-per-client": "auto"}
"""Defaults of the app where they are not the command's: a first `flwr run` takes the nodes there
are."""
ROOT = Path(__file__).resolve().parent.parent
_PAGE = """# Every key

<!-- Written by `make docs` from the declarations in the code: change those. -->

In YAML, keys nest at the dots (`partition: {kind: iid}`) or are written as shown here, each with its default and what is allowed. `-o` and Flower's run-config take them as shown.
`auto` lets the program choose. A value out of range is refused before anything starts, with the allowed values.

One file may hold the options of all methods in the package: a run uses those of its own method. Your own method declares its options itself
and gets them from `method-options` ([extending](extending.md)).
"""
_COMMANDS = """# Every command

<!-- Written by `make docs` from pfedlora_flwr/cli.py: change that. -->

This is the `--help` of each command. [Keys](keys.md) lists the keys for `-o`.
"""
_ROWS = (
    "<!-- From here on written by `make docs` from rows.py, audits.py and status.py of"
    " pfedlora_flwr/runs/, evaluate.py and align.py of pfedlora_flwr/ops/, and listing.py of"
    " pfedlora_flwr/commands/: change those. -->"
)
_ABSENT = " A field marked ? may be absent."
_RESULT = (
    "These keys can change a result. With the method's options they are the Experiment and"
    " determine its fingerprint."
)
_REST = (
    "These keys say how and where an Experiment runs. None can change a result unless clients fail"
    " or are refused, and a resumed run may change them."
)


_OBJECT = "str | Callable[..., Any]"
_TAKES = {
    "method": _OBJECT,
    "method-options": "str | Mapping[str, Any]",
    "models": f"{_OBJECT} | Sequence[{_OBJECT}]",
    "dataset": f"{_OBJECT} | tuple[Any, ...] | Mapping[str, Any]",
    "observers": f"{_OBJECT} | Sequence[{_OBJECT}]",
    "partition.classes-per-client": "int | Literal['auto']",
}
"""The types of keys that take more than their own."""
_PLACES = ("data-path", "output", "start-from", "state-path")
"""Keys that are a folder."""
_CALLS = {
    "run": (),
    "compare": ("output",),
    "decide": ("output", "sites"),
    "adapt": ("output", "overwrite"),
    "resume": ("rounds", "output", "resume", "overwrite"),
}
"""Calls that take keys, each with the keys that it has as arguments of its own, or sets."""
_TYPED = '''"""Every key as an argument, for type checkers and completion.

Written by `make docs` from the declarations in the code: change those."""
# ruff: noqa: E501
# fmt: off

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

'''
_GIVEN = """def named(  # jedi reads no TypedDict, but follows what is handed on
    *,
{arguments}
) -> Mapping[str, Any]: ...
"""


def typed_keys() -> str:
    """pfedlora_flwr/api/typed_keys.pyi: a TypedDict for each call that takes keys, over one of those
    that all take."""
    every = {re.sub(r"[.-]", "_", name): key for name, key in all_keys().items()}
    apart = dict.fromkeys(name for own in _CALLS.values() for name in own)
    files = {name: key for name, key in every.items() if key.name.startswith("data.")}
    rest = [key for name, key in every.items() if name not in apart and name not in files]
    parts = [
        _TYPED + _dict("ReadingKeys", "TypedDict", files.values()),
        _dict("Keys", "ReadingKeys", rest),
    ]
    for call, own in _CALLS.items():
        rest = [every[name] for name in apart if name not in own]
        parts.append(_dict(f"{call.title()}Keys", "Keys", rest))
    parts.append(_dict("DataKeys", "ReadingKeys", [every["data_path"]]))
    arguments = "\n".join(
        f"    {name}: {_type(key)} = {key.text(key.default)!r}," for name, key in every.items()
    )
    return "\n\n".join([*parts, _GIVEN.format(arguments=arguments)])


def _dict(name: str, base: str, keys: Iterable[Key]) -> str:
    fields = [
        f'    {re.sub(r"[.-]", "_", k.name)}: {_type(k)}\n    """{_about(k)}"""\n' for k in keys
    ]
    return f"class {name}({base}, total=False):\n{''.join(fields)}"


def _about(k: Key) -> str:
    return f"{k.meaning} ({k.text(k.default)}; {k.allowed})"


def _type(k: Key) -> str:
    """What a key takes in Python."""
    if k.name in _TAKES:
        return _TAKES[k.name]
    if k.path or k.name in _PLACES:
        return "str | PathLike[str]" + " | None" * k.auto
    if k.form:
        return "str | int | float | Sequence[str]"
    if k.choices and not any(one.endswith((":", "@")) or one == FUNCTION for one in k.choices):
        choices = [*k.choices, "auto"] if k.auto else k.choices
        return f"Literal[{', '.join(map(repr, choices))}]" + " | None" * k.auto
    told = f"{k.kind.__name__} | Literal['auto'] | None" if k.auto else k.kind.__name__
    return told.replace("str | Literal['auto']", "str")


def known() -> str:
    """pfedlora_flwr/ops/known.json: keys, methods and datasets, a row each."""
    own = {name: registry.title(name) for name in registry.NAMES}
    first: dict[str, str] = {}
    for name, title in own.items():
        for key in option_keys(name, registry.find(name).Options):
            first.setdefault(key, title)
    keys = [
        {
            "key": name,
            "part": first.get(name) or (name.partition(".")[0] if "." in name else _side(name)),
            "default": k.text(k.default),
            "allowed": k.allowed,
            "meaning": k.meaning,
        }
        for name, k in all_keys().items()
    ]
    methods = [
        {
            "method": name,
            "title": title,
            "idea": found.idea,
            "shares": found.shares,
            "assumes": found.assumes,
            "paper": found.paper,
        }
        for name, title in own.items()
        for found in [registry.find(name)]
    ]
    sources = [
        {
            "dataset": f"{source.name}…" if source.name.endswith(":") else source.name,
            "classes": source.classes,
            "samples": source.samples if isinstance(source.samples, int) else None,
            "about": f"{source.title} {_first_words(source.read)}".strip(),
            "keys": ", ".join(source.columns),
        }
        for name in datasets.NAMES
        for source in [datasets.find(f"{name}…" if name.endswith(":") else name)]
    ]
    found = {"keys": keys, "methods": methods, "datasets": sources}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _first_words(function: Callable[..., object]) -> str:
    text = " ".join((function.__doc__ or "").partition("\n\n")[0].split())
    return text.removesuffix(" Raises UserError.")


def _side(name: str) -> str:
    return "the Experiment" if name in experiment.KEYS else "the Execution"


def keys_page() -> str:
    """docs/keys.md."""
    known = all_keys()
    parts = [_PAGE, "## The Experiment", _RESULT, _list(known[name] for name in experiment.KEYS)]
    parts += ["## The Execution", _REST, _list(known[name] for name in execution.KEYS)]
    first: dict[Key, str] = {}
    for name in registry.NAMES:
        title = registry.title(name)
        own = option_keys(name, registry.find(name).Options).values()
        new = [key for key in own if first.setdefault(key, title) == title]
        if own:
            parts += [f"## {title}", *([_list(new)] if new else [])]
        for other in dict.fromkeys(first[key] for key in own if key not in new):
            names = ", ".join(f"`{key.name}`" for key in own if first[key] == other)
            parts.append(f"As for {other}: {names}.")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def cli_page() -> str:
    """docs/cli.md."""
    group, parts = commands(), [_COMMANDS]
    assert isinstance(group, click.Group)
    within = {
        f"{name} {inner}": command
        for name, one in group.commands.items()
        if isinstance(one, click.Group)
        for inner, command in one.commands.items()
    }
    for name, command in {**group.commands, **within}.items():
        context = click.Context(command, info_name=f"pfedlora {name}", terminal_width=80)
        help_text = command.get_help(context).partition("  Keys for CONF and -o")[0].rstrip()
        help_text = re.sub(r"(?s)(\n\nOptions:)?\n +--help +Show this message.*", "", help_text)
        parts += [f"## {name}", f"```text\n{help_text}\n```"]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def output_page(text: str) -> str:
    """docs/output.md with every TypedDict of the files and of what commands write as JSON, and its
    fields, by their comments."""
    units = ast.get_docstring(ast.parse(Path(rows.__file__).read_text(encoding="utf-8"))) or ""
    parts = [text.partition(_ROWS)[0], _ROWS, "## Units", units.partition("\n\n")[2] + _ABSENT]
    for module in (rows, audits, status, evaluate, listing, align):
        parts += _typed_dicts(Path(str(module.__file__)).read_text(encoding="utf-8"))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _typed_dicts(source: str) -> Iterator[str]:
    """Each one's heading, meaning and fields."""
    lines = source.splitlines()
    for node in (n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)):
        bases = [
            f"`{base.id}`"
            for base in node.bases
            if isinstance(base, ast.Name) and base.id != "TypedDict"
        ]
        inherited = f"Also the fields of {' and '.join(bases)}." if bases else ""
        yield f"## {node.name}"
        yield f"{ast.get_docstring(node) or ''} {inherited}".strip()
        fields = [
            (f"`{field.target.id}{absent}`", kind, _comment(lines, field))
            for field in node.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            for kind, absent in [_typed(field.annotation)]
        ]
        yield "\n".join(
            f"- {', '.join(name for name, *_ in alike)}, {kind}. {comment}".strip()
            for (kind, comment, _), alike in groupby(fields, lambda f: (*f[1:], f[2] and f[0]))
        )


def _typed(annotation: ast.expr) -> tuple[str, str]:
    """A field's type, and a question mark if it may be absent."""
    text = ast.unparse(annotation)
    found = re.fullmatch(r"NotRequired\[(.*)\]", text)
    return (f"`{found[1]}`", "?") if found else (f"`{text}`", "")


def pyproject(text: str) -> str:
    """pyproject.toml with the version, the app's two sides, and every key with its default."""
    text = _line(text, 'version = "', __version__, '"')
    text = re.sub(
        r"\[tool\.flwr\.app\]\n.*?(?=\n\[tool\.flwr\.app\.config\])",
        lambda _: COMPONENTS.replace("[tool.flwr.app]\n", f"[tool.flwr.app]\n{_FORMAT}", 1),
        text,
        flags=re.DOTALL,
    )
    return re.sub(
        r"\[tool\.flwr\.app\.config\].*?(?=\n\n\[tool\.ruff\])",
        lambda _: _toml_tables(),
        text,
        flags=re.DOTALL,
    )


def citation(text: str) -> str:
    """CITATION.cff with the version and the address."""
    address = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "urls"
    ]["Homepage"]
    return _line(_line(text, "version: ", __version__), "repository-code: ", address)


def declared() -> dict[Path, str]:
    """Each file with the text it should have."""
    project, cited, output = (
        ROOT / "pyproject.toml",
        ROOT / "CITATION.cff",
        ROOT / "docs" / "output.md",
    )
    return {
        ROOT / "docs" / "keys.md": keys_page(),
        ROOT / "docs" / "cli.md": cli_page(),
        ROOT / "pfedlora_flwr" / "api" / "typed_keys.pyi": typed_keys(),
        ROOT / "pfedlora_flwr" / "ops" / "known.json": known(),
        output: output_page(output.read_text(encoding="utf-8")),
        project: pyproject(project.read_text(encoding="utf-8")),
        cited: citation(cited.read_text(encoding="utf-8")),
    }


def _list(keys: Iterable[Key]) -> str:
    """Each key with its default, what is allowed, and its meaning."""
    return "\n".join(f"- **`{k.name}`** (`{_shown(k)}`; {k.allowed})<br>{k.meaning}" for k in keys)


def _comment(lines: list[str], field: ast.AnnAssign) -> str:
    """What stands beside a field, on the line on which its type ends, or else above it."""
    beside = lines[(field.end_lineno or field.lineno) - 1].partition("  # ")[2]
    above: list[str] = []
    while not beside and (line := lines[field.lineno - 2 - len(above)].strip()).startswith("# "):
        above.insert(0, line.removeprefix("# "))
    text = beside or " ".join(above)
    return text[:1].upper() + text[1:] if text[1:2].isalpha() else text


def _toml_tables() -> str:
    tables: dict[str, list[str]] = {"": []}
    for k in all_keys().values():
        table, _, name = k.name.rpartition(".")
        if table in all_keys():  # which has a value: it cannot be a table, too
            table, name = "", json.dumps(k.name)
        default = json.dumps(OF_APP[k.name]) if k.name in OF_APP else _shown(k)
        tables.setdefault(table, []).append(f"{name} = {default}")
    head = "tool.flwr.app.config"
    return "\n\n".join(
        "\n".join([f"[{head}.{t}]" if t else f"[{head}]", *lines]) for t, lines in tables.items()
    )


def _shown(k: Key) -> str:
    """The default as YAML and TOML write it."""
    return json.dumps(k.text(k.default), ensure_ascii=False)


def _line(text: str, before: str, value: str, after: str = "") -> str:
    """The text with the line that begins with `before` set to the value."""
    return re.sub(
        rf"^{re.escape(before)}.*$",
        lambda _: f"{before}{value}{after}",
        text,
        count=1,
        flags=re.MULTILINE,
    )


def main() -> None:
    for path, text in declared().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
