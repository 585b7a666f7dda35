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

    def add_file(self, name: str, text: str) -> None:
        assert not (self.package / name).exists()
        (self.package / name).write_text(text)

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

    def add_import(self, name: str, line: str) -> None:
        """Adds an import, which a table of functions needs."""
        file, head = self.package / name, "from __future__ import annotations\n\n"
        file.write_text(file.read_text().replace(head, f"{head}{line}\n", 1))

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
