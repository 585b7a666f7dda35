"""`pfedlora doctor`: checks what a run needs, and says what to fix."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import psutil
import torch
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pfedlora_flwr.data.cifar import TORCHVISION_REMEDY
from pfedlora_flwr.errors import brief, counted, first_line
from pfedlora_flwr.files import cache_root
from pfedlora_flwr.launch.flower import LaunchError, tool
from pfedlora_flwr.launch.processes import free_port
from pfedlora_flwr.launch.resources import cores
from pfedlora_flwr.launch.superlink import (
    Check,
    Connection,
    Node,
    find_connection,
    known_keys,
    nodes_of,
    way_to,
)

_OURS = "pfedlora-flwr"
_LOW_DISK, _LOW_MEMORY = 2e9, 2e9


def examine(out: Console, superlink: str = "") -> int:
    """Prints a line a check, then what to do; 0 when nothing needs fixing, else 1.

    superlink: a connection in Flower's config.toml, which is looked at in the place of this
    machine. Raises UserError if there is none.
    """
    if superlink:
        return _show(_superlink(find_connection(superlink)), f"SuperLink {superlink}", out)
    return _show(_machine(), "pfedlora doctor", out)


def _machine() -> list[Check]:
    cached = sorted({p.parent.name.split("-")[0] for p in cache_root().glob("*/meta.json")})
    return [
        *_packages(),
        _torchvision(),
        _commands(),
        _cores(),
        _gpu(),
        _memory(),
        *_disks(),
        Check("dataset caches", f"{', '.join(cached) or 'none yet'} in {cache_root()}"),
        _ports(),
    ]


def _superlink(connection: Connection) -> list[Check]:
    """The way to the SuperLink, and the nodes that it knows."""
    root = [f"trusts {connection.root}"] if connection.root else []
    said = ["insecure"] if connection.insecure else root
    checks = [
        Check("connection", f"{', '.join([connection.address, *said])}, by {connection.file}"),
        *way_to(connection),
    ]
    if any(check.bars for check in checks):
        return checks
    try:
        nodes = nodes_of(connection)
    except (Exception, SystemExit) as error:
        found = f"it does not answer Flower's client ({brief(error)})"
        fix = f"see what `flwr supernode list {connection.name}` says"
        return [*checks, Check("SuperLink", found, fix)]
    online = sum(node.status == "online" for node in nodes)
    told = f"{len(nodes)} known, {online} online"
    fix = "start the sites' SuperNodes; with authentication, register their keys first"
    if online:
        fix = f"start the SuperNodes that are offline ({len(nodes) - online}), or unregister them"
    ok = 0 < online == len(nodes)
    return [*checks, Check("nodes", told, "" if ok else fix), *_sites(nodes, connection)]


def _sites(nodes: list[Node], connection: Connection) -> Iterator[Check]:
    """A line a node. Which key it has is found by the `*.pub` files beside the authority's and
    here."""
    named = known_keys([*([connection.root.parent] if connection.root else []), Path.cwd()])
    for node in nodes:
        key = f"key {named.get(node.key, node.key)}" if node.key else "Flower tells no key"
        yield Check(f"node {node.name or node.number}", f"{node.status} since {node.since}, {key}")


def _show(checks: list[Check], title: str, out: Console) -> int:
    table = Table("", "check", "found", title=title, show_lines=False)
    for check in checks:
        mark = Text("fix", "yellow") if check.fix else Text("ok", "green")
        table.add_row(mark, check.what, Text(check.found))
    out.print(table)
    bad = [check for check in checks if check.fix]
    out.print(f"{len(bad)} to fix" if bad else "nothing to fix")
    for check in bad:
        out.print(f"  {check.what}: {check.fix}", soft_wrap=True)
    return 1 if bad else 0


def _packages() -> Iterator[Check]:
    try:
        requires(_OURS)
    except PackageNotFoundError:
        yield Check(_OURS, "missing", "pip install -e . in the folder of its pyproject.toml")
    for requirement in _requirements(_OURS):
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            installed = ""
        fits = installed and requirement.specifier.contains(installed, prereleases=True)
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        wanted = f"{requirement.name}{extras}{requirement.specifier}"
        fix = "" if fits else f'pip install "{wanted}"'
        yield Check(requirement.name, installed or "missing", fix)


def _requirements(package: str, extra: str = "") -> Iterator[Requirement]:
    """What an installed package asks for on this machine, or what one of its extras does; and what
    the extras that it asks for do."""
    try:
        asked = [Requirement(text) for text in requires(package) or []]
    except PackageNotFoundError:
        return
    for requirement in asked:
        always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if always is not bool(extra) and (
            always or (requirement.marker and requirement.marker.evaluate({"extra": extra}))
        ):
            yield requirement
            for further in sorted(requirement.extras):
                yield from _requirements(requirement.name, further)


def _torchvision() -> Check:
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:
        found = f"cannot be imported ({first_line(str(error))}): CIFAR cannot be downloaded"
        return Check("import torchvision", found, TORCHVISION_REMEDY)
    return Check("import torchvision", torchvision.__version__)


def _commands() -> Check:
    try:
        return Check("Flower's commands", ", ".join(map(tool, ("flwr", "flower-superlink"))))
    except LaunchError as error:
        return Check("Flower's commands", "missing", str(error))


def _cores() -> Check:
    physical = psutil.cpu_count(logical=False) or os.cpu_count()
    told = f"{physical} physical, {os.cpu_count()} logical, of which this process may use {cores()}"
    return Check("cores", told)


def _gpu() -> Check:
    if not torch.cuda.is_available():
        return Check("GPU", "none that PyTorch sees: clients train on the CPU")
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    count = torch.cuda.device_count()
    return Check(
        "GPU",
        f"{names} (CUDA {torch.version.cuda}); {counted(count, 'actor')}, one a GPU, unless"
        " `actors` says more",
    )


def _memory() -> Check:
    free = psutil.virtual_memory().available
    fix = "" if free > _LOW_MEMORY else "free some: an actor takes about 0.4 GB"
    return Check("free memory", f"{free / 1e9:.1f} GB", fix)


def _disks() -> Iterator[Check]:
    for what, folder, key in (
        ("disk for runs", Path.cwd(), "output"),
        ("disk for dataset caches", cache_root(), "PFEDLORA_CACHE"),
    ):
        existing = next(p for p in (folder, *folder.parents) if p.exists())
        free = shutil.disk_usage(existing).free
        fix = "" if free > _LOW_DISK else f"free some, or set {key} to a folder on another disk"
        if not os.access(existing, os.W_OK):
            fix = f"{existing} is not writable: set {key} to a folder that is"
        yield Check(what, f"{free / 1e9:.1f} GB free at {existing}", fix)


def _ports() -> Check:
    try:
        return Check("ports", f"127.0.0.1:{free_port()} is free")
    except OSError as error:
        return Check("ports", str(error), "allow this user to listen on 127.0.0.1")
