"""Runs the notebook in a kernel and keeps what it shows: `make notebook`.

Its metadata says of which version and of which cells the outputs are; a test holds both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

from pfedlora_flwr.version import __version__

FILE = Path(__file__).resolve().parent.parent / "examples" / "quickstart.ipynb"


def made_by(notebook: Any) -> dict[str, str]:
    """The version, and the hash of the cells' code."""
    codes = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return {"version": __version__, "code": hashlib.sha256(json.dumps(codes).encode()).hexdigest()}


def executed(folder: Path, changed: Mapping[str, object] | None = None) -> Any:
    """The notebook with its outputs, run in a kernel in this folder, which they do not name.
    changed: keys of its runs."""
    notebook = nbformat.read(FILE, 4)
    for cell in notebook["cells"]:
        if changed and cell["source"].startswith("import pfedlora_flwr"):
            cell["source"] = cell["source"].replace("}\n", f"}} | {changed}\n", 1)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    text = nbformat.writes(notebook).replace(f"{folder}/", "")
    found = nbformat.reads(text, 4)
    found["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "pfedlora_flwr": made_by(found),
    }
    for cell in found["cells"]:
        cell["metadata"] = {}
    return found


def main() -> None:
    with TemporaryDirectory() as folder:
        FILE.write_text(nbformat.writes(executed(Path(folder).resolve())) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
