"""`pfedlora doctor`: looks at what a run needs, and says what to fix."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch
from rich.console import Console
from rich.table import Table

from pfedlora_flwr.data.cache import cache_root
from pfedlora_flwr.data.cifar import TORCHVISION_REMEDY
from pfedlora_flwr.launch.simulation import free_port

_LOW_DISK, _LOW_MEMORY = 2e9, 2e9


def report(out: Console) -> int:
    """Prints a line a check; 0 when nothing needs fixing."""
    table = Table("", "check", "found", "what to do", title="pfedlora doctor", show_lines=False)
    checks = [_python(), *_packages(), _cores(), _gpu(), _memory(), *_disks(), _caches(), _torchvision(), _ports()]
    for ok, what, found, remedy in checks:
        table.add_row("[green]ok[/]" if ok else "[yellow]fix[/]" if remedy else "-", what, found, remedy if not ok else "")
    out.print(table)
    bad = sum(1 for ok, _, _, remedy in checks if not ok and remedy)
    out.print("nothing to fix" if not bad else f"{bad} to fix")
    return 0 if not bad else 1


Check = tuple[bool, str, str, str]


def _python() -> Check:
    return sys.version_info >= (3, 11), "Python", platform.python_version(), "install Python 3.11 or later"


def _packages() -> list[Check]:
    found = []
    for package in ("flwr", "ray", "torch", "numpy", "safetensors", "pyarrow"):
        try:
            installed = version(package)
        except PackageNotFoundError:
            found.append((False, package, "missing", "pip install -e ."))
            continue
        supported = package != "flwr" or (1, 41) <= tuple(int(n) for n in installed.split(".")[:2]) < (1, 43)
        found.append((supported, package, installed, 'pip install "flwr[simulation]>=1.41,<1.43"'))
    return found


def _cores() -> Check:
    return True, "cores", f"{psutil.cpu_count(logical=False) or os.cpu_count()} physical, {os.cpu_count()} logical", ""


def _gpu() -> Check:
    if not torch.cuda.is_available():
        return False, "GPU", "none that PyTorch sees: clients train on the CPU", ""
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return True, "GPU", f"{names} (CUDA {torch.version.cuda})", ""


def _memory() -> Check:
    free = psutil.virtual_memory().available
    return free > _LOW_MEMORY, "free memory", f"{free / 1e9:.1f} GB", "free some: an actor takes about 0.4 GB"


def _disks() -> list[Check]:
    found = []
    for what, folder in (("disk for runs", Path.cwd()), ("disk for dataset caches", cache_root())):
        existing = next(p for p in (folder, *folder.parents) if p.exists())
        free = shutil.disk_usage(existing).free
        found.append((free > _LOW_DISK, what, f"{free / 1e9:.1f} GB free at {existing}", "free some, or set output / PFEDLORA_CACHE"))
        writable = os.access(existing, os.W_OK)
        if not writable:
            found.append((False, what, f"{existing} is not writable", "set output / PFEDLORA_CACHE to a writable folder"))
    return found


def _caches() -> Check:
    names = sorted({p.parent.name.split("-")[0] for p in cache_root().glob("*/meta.json")})
    return True, "dataset caches", f"{', '.join(names) or 'none yet'} in {cache_root()}", ""


def _torchvision() -> Check:
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:
        found = f"cannot be imported ({str(error).splitlines()[0]}): CIFAR cannot be downloaded"
        return False, "torchvision", found, TORCHVISION_REMEDY
    return True, "torchvision", torchvision.__version__, ""


def _ports() -> Check:
    try:
        return True, "ports", f"127.0.0.1:{free_port()} is free", ""
    except OSError as error:
        return False, "ports", str(error), "allow this user to listen on 127.0.0.1"
