"""A copy of the package with something added to it: shows how many places an addition takes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pfedlora_flwr

PACKAGE = Path(pfedlora_flwr.__file__).parent


class Grown:
    """A copy of the package in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / PACKAGE.name
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        self.touched: set[str] = set()
        """The files that were added or changed."""

    def add_file(self, name: str, text: str) -> None:
        file = self.package / name
        assert not file.exists()
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        self.touched.add(name)

    def put(self, name: str, old: str, new: str) -> None:
        """Puts `new` in the place of the first `old`."""
        file = self.package / name
        assert old in file.read_text(), f"no {old!r} in {name}"
        file.write_text(file.read_text().replace(old, new, 1))
        self.touched.add(name)

    def insert(self, name: str, before: str, text: str) -> None:
        """Inserts `text` before the first `before`."""
        self.put(name, before, text + before)

    def add_line(self, name: str, table: str, line: str) -> None:
        """Adds a line to the end of a table, which is assigned over several lines."""
        file = self.package / name
        text, count = re.subn(
            rf"(?ms)^({table}\b[^\n]* = [({{]\n.*?)^([)}}])",
            rf"\1    {line}\n\2",
            file.read_text(),
            count=1,
        )
        assert count == 1, f"no table {table} in {name}"
        file.write_text(text)
        self.touched.add(name)

    def add_import(self, name: str, line: str) -> None:
        """Adds an import, which a table of functions needs."""
        head = "from __future__ import annotations\n\n"
        self.put(name, head, f"{head}{line}\n")

    def run(self, code: str) -> None:
        """Runs the code in another process, where the package is this copy."""
        path = os.pathsep.join((str(self.folder), str(PACKAGE.parent)))
        environment = os.environ | {
            "PYTHONPATH": path,
            "PFEDLORA_CACHE": str(self.folder / "cache"),
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
