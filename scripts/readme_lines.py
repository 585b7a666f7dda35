"""Runs what README.md shows, as it stands: its Python, and the commands beside it.

    python scripts/readme_lines.py

All blocks marked as Python are run, and the `pfedlora` commands of the same sections; Python and
commands each in an empty folder, by the interpreter of this script, in which the package must be
installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Of each section that has any Python: all of that, and its commands."""
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        blocks = _BLOCK.findall(section)
        code = "\n".join(body for language, body in blocks if language == "python")
        lines = [
            line for language, body in blocks if language != "python" for line in body.splitlines()
        ]
        if code:
            yield code, [line for line in lines if line.startswith("pfedlora ")]


def main() -> None:
    found = [*sections(README.read_text(encoding="utf-8"))]
    if not found:
        raise SystemExit("README.md shows no Python")
    tools = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for code, commands in found:
        for words in ([sys.executable, "-c", code], ["bash", "-euxc", "\n".join(commands)]):
            with tempfile.TemporaryDirectory(prefix="readme-") as folder:
                subprocess.run(words, cwd=folder, env=tools, check=True)


if __name__ == "__main__":
    main()
