"""What made a run: versions, and the commit of this code where it lies in a checkout of its own."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pfedlora_flwr import __version__

_PACKAGES = ("flwr", "torch", "numpy", "ray")


def versions() -> dict[str, str | None]:
    """The versions of what makes a result."""
    others = {package: _version(package) for package in _PACKAGES}
    return {"pfedlora-flwr": __version__, **others, "python": platform.python_version()}


def git_commit(file: Path = Path(__file__)) -> str | None:
    """The commit of the checkout that holds `file`, with `-dirty` where tracked files differ from it.

    None where git does not track the file: the package may be installed inside somebody else's repository.
    """
    folder = str(file.resolve().parent)

    def git(*words: str) -> str:
        command = ["git", "-C", folder, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)
        commit = git("rev-parse", "HEAD")
        return commit + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
