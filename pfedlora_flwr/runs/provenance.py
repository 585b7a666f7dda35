"""The origin of a run: versions, the machine, and the commit of this code if it lies in a checkout
of its own."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml

from pfedlora_flwr.version import __version__

_DEEPEST = 50
"""Levels of a configuration file."""
_OWN = "pfedlora-flwr"
TOLD = (_OWN, "flwr", "torch")
"""Of which a server's and its nodes' versions must go together."""
_PACKAGES = ("flwr", "torch", "torchvision", "timm", "peft", "numpy", "ray")


def versions() -> dict[str, str | None]:
    """The versions of what makes a result."""
    others = {package: _version(package) for package in _PACKAGES}
    return {_OWN: __version__, **others, "python": platform.python_version()}


def told_versions() -> dict[str, str]:
    """Those of `TOLD` here."""
    return {n: (__version__ if n == _OWN else _version(n)) or "" for n in TOLD}


def machine(device: str) -> dict[str, Any]:
    """The server's host, which is a simulation's only one: processor, usable cores, memory in
    bytes; gpus: where `device` means them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {"processor": _processor(), "cores": cores, "memory": psutil.virtual_memory().total}
    return found | ({"gpus": _gpus()} if device != "cpu" and torch.cuda.is_available() else {})


def read_config(config: Path) -> Any:
    """What a run's configuration file holds, by YAML's own reader in C where there is one. Raises
    OSError, ValueError or yaml.YAMLError."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text, depth = config.read_text(encoding="utf-8"), 0
    for event in yaml.parse(text, loader):  # to build what nests deeply would end the process
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError("it nests too deeply")
    return yaml.load(text, loader)


def read_about(config: Path) -> dict[str, Any]:
    """What made the run with this configuration file, as it says under `about`; empty where it
    cannot be read."""
    try:
        return dict(read_config(config)["about"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return {}


def commits(abouts: Iterable[Mapping[str, Any]]) -> list[str]:
    """The different commits of all starts of some runs, as `short` has them; "" for starts that
    have recorded none."""
    return list(
        dict.fromkeys(
            short(entry.get("git-commit")) for about in abouts for entry in about.get("history", ())
        )
    )


def short(commit: str | None) -> str:
    """Ten digits of a commit, with its `-dirty`; "" for none."""
    return re.sub(r"^(\w{10})\w*", r"\1", commit or "")


@cache
def git_commit(file: Path = Path(__file__)) -> str | None:
    """The commit of the checkout that holds `file`, with `-dirty` where tracked files differ from
    it. Asked once a process, which runs what it has loaded.

    None where git does not track the file: the package may be installed inside somebody else's
    repository."""
    folder = str(file.resolve().parent)

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", folder, *words], capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()

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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """Their names, asked of the driver: to ask PyTorch would start CUDA in the server."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return (
            subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            .stdout.strip()
            .splitlines()
        )
    except (OSError, subprocess.SubprocessError):
        return []
