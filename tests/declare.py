"""Writes the declared configuration keys into pyproject.toml and README.md: `python -m tests.declare`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pfedlora_flwr.config import all_keys
from pfedlora_flwr.keys import Key

ROOT = Path(__file__).resolve().parent.parent


def shown(k: Key) -> str:
    """The default as YAML and TOML write it."""
    return json.dumps(k.text(k.default), ensure_ascii=False)


def readme_table() -> str:
    rows = [f"| `{k.name}` | `{shown(k)}` | {k.meaning} | {k.allowed.replace('|', '&#124;')} |" for k in all_keys().values()]
    return "\n".join(["| key | default | meaning | allowed |", "| --- | --- | --- | --- |", *rows])


def toml_tables() -> str:
    tables: dict[str, list[str]] = {"": []}
    for k in all_keys().values():
        table, _, name = k.name.rpartition(".")
        tables.setdefault(table, []).append(f"{name} = {shown(k)}")
    head = "tool.flwr.app.config"
    return "\n\n".join("\n".join([f"[{head}.{t}]" if t else f"[{head}]", *lines]) for t, lines in tables.items())


def main() -> None:
    pyproject, readme = ROOT / "pyproject.toml", ROOT / "README.md"
    text = re.sub(r"\[tool\.flwr\.app\.config\].*?(?=\n\n\[tool\.ruff\])", lambda _: toml_tables(), pyproject.read_text(), flags=re.DOTALL)
    pyproject.write_text(text)
    marks = r"(?<=<!-- keys -->\n).*?(?=\n<!-- /keys -->)"
    readme.write_text(re.sub(marks, lambda _: readme_table(), readme.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
