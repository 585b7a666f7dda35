"""An existing Ray cluster: its nodes, and whether each can train our clients to the same bits as
this host.

Ray is imported in a process of its own, this file as a program, which looks and ends: to connect is
to hold threads and a job."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.errors import UserError, wrong
from pfedlora_flwr.execution import Execution, RunConfig
from pfedlora_flwr.files import cache_root
from pfedlora_flwr.launch import processes
from pfedlora_flwr.models.linear import maker_of_cpu

ADDRESS, PRIVATE = "RAY_ADDRESS", "local"
"""Ray's: the variable that names the cluster that `ray.init` joins, and its value for none."""
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray's: what `ray.init` adds to a job, as `ray job submit` hands it on."""
MERGED = {"RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
"""What lets Ray take both that and what is given to `ray.init`."""
_PINS = ("ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
"""What says which kernels those libraries take, whatever the processor has."""
_HANDED_ON = ("ATEN_CPU_CAPABILITY", *_PINS)
"""Variables that choose what arithmetic is done by."""
_KNOCK, _ANSWER, _TASK = 3.0, 60.0, 300.0
"""Seconds: to reach an address, for Ray to take us in, and for a node to answer."""


@dataclass(frozen=True)
class Node:
    """A node of a Ray cluster that is alive."""

    id: str
    address: str
    cpus: int
    gpus: int

    @property
    def name(self) -> str:
        """Its address, and the beginning of Ray's id: several may run on one host."""
        return f"{self.address} ({self.id[:8]})"


def address_of(execution: Execution) -> str:
    """The cluster that the run joins: the key `ray`, else $RAY_ADDRESS; empty: none."""
    address = execution.ray or os.environ.get(ADDRESS, "")
    return "" if address == PRIVATE else address


def check_address(address: str) -> None:
    """Raises UserError unless this is a cluster's address, and something listens there."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16 or "/" in host:
        raise wrong(
            "ray", address, "HOST:PORT, as `ray start --head` prints it, on a node of that cluster"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK).close()
    except OSError as error:
        raise UserError(
            f"ray is {address!r} and nothing answers there ({error.strerror or error}); start it:"
            " ray start --head"
        ) from None


@cache
def find_nodes(address: str) -> tuple[Node, ...]:
    """The cluster's living nodes, in the order of their addresses. Raises UserError if there is
    no such cluster."""
    check_address(address)
    alive = [node for node in _ask(address, {}, _ANSWER)["nodes"] if node["Alive"]]
    has = [[int(node["Resources"].get(kind, 0)) for kind in ("CPU", "GPU")] for node in alive]
    pairs = zip(alive, has, strict=True)
    nodes = [Node(node["NodeID"], node["NodeManagerAddress"], *counts) for node, counts in pairs]
    return tuple(sorted(nodes, key=lambda node: (node.address, node.id)))


def worker_environment(own: Mapping[str, str]) -> dict[str, str]:
    """What workers of a cluster have to be given, since they inherit nothing from us: `own`, and
    what results depend on. (Flower hands on the PYTHONPATH.)"""
    chosen = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    return {**own, **chosen, "OMP_NUM_THREADS": "1", "PFEDLORA_CACHE": str(cache_root())}


def job_config(environment: dict[str, str]) -> str:
    """The value of JOB_CONFIG for workers that have this in their environment."""
    # of `ray job submit`, if that started us
    given = json.loads(os.environ.get(JOB_CONFIG) or "{}")
    runtime = given.get("runtime_env") or {}
    return json.dumps(
        given | {"runtime_env": runtime | {"env_vars": runtime.get("env_vars", {}) | environment}}
    )


def check_nodes(
    address: str,
    nodes: Sequence[Node],
    config: RunConfig,
    environment: Mapping[str, str],
    folders: Sequence[Path],
) -> None:
    """A task on each node compares what it has with what this host has, prepares a client of each
    kind, and finds and writes a file in each of these folders.

    environment: of its process. Raises UserError that names the first node that differs, and says
    what to do."""
    token = secrets.token_hex(8)
    files = [folder / f".ray-{token}" for folder in folders]
    try:
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(token)
        look = {
            "environment": dict(environment),
            "nodes": [node.id for node in nodes],
            "files": [str(file) for file in files],
            "token": token,
            "keys": config.flat(),
        }
        answers = _ask(address, {"look": look}, _ANSWER + _TASK)["looks"]
    finally:
        for file in files:
            file.unlink(missing_ok=True)
    here = look_around([], "", {}) | {"partition": Setup.of(config).partition.fingerprint}
    for node in nodes:
        if fault := _fault(
            here, answers[node.id], on_gpu=node.gpus > 0 and config.experiment.device != "cpu"
        ):
            raise UserError(f"the Ray node {node.name} {fault}")


def look_around(files: Sequence[str], token: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """What a process of ours has where it runs. files: in each stands the token, and beside it
    something can be written. keys: of the Experiment whose clients are prepared; none: no client
    is."""
    try:
        import torch

        import pfedlora_flwr
    except Exception as error:
        return {"lacks": f"{type(error).__name__}: {error}", "python": sys.executable}
    package = Path(pfedlora_flwr.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    found: dict[str, Any] = {
        "version": pfedlora_flwr.__version__,
        "source": digest.hexdigest(),
        "package": str(package),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cpu": _kind_of_cpu(torch.backends.cpu.get_cpu_capability()),
        "unseen": [],
        "unwritable": [],
    }
    for name in files:
        file = Path(name)
        try:
            if file.read_text() != token:
                raise FileNotFoundError
        except OSError:
            found["unseen"].append(str(file.parent))
            continue
        try:
            mine = file.with_name(f"{file.name}-{os.getpid()}")
            mine.write_text(token)
            mine.unlink()
        except OSError:
            found["unwritable"].append(str(file.parent))
    if keys and not found["unseen"]:
        try:
            from pfedlora_flwr.config import run_config
            from pfedlora_flwr.launch.trainable import check_trainable

            config = run_config(keys)
            check_trainable(config)
            found["partition"] = Setup.of(config).partition.fingerprint
        except Exception as error:
            found["unprepared"] = " ".join(str(error).split()) or type(error).__name__
    return found


def _fault(here: Mapping[str, Any], there: Mapping[str, Any], *, on_gpu: bool) -> str:
    """What is wrong with a node, and what to do; empty: nothing."""
    if "silent" in there:
        return f"does not answer ({there['silent']}): look at it, or take it out of the cluster"
    if "lacks" in there:
        return (
            f"cannot import what clients need ({there['lacks']}): install this version of"
            f" pfedlora-flwr for {there['python']}"
        )
    for name, what in (("version", "pfedlora-flwr"), ("torch", "PyTorch")):
        if here[name] != there[name]:
            return f"has {what} {there[name]}, this host {here[name]}: install the same"
    if here["source"] != there["source"]:
        return (
            f"has other code in {there['package']} than this host, of the same version: install the"
            " same"
        )
    if here["cpu"] != there["cpu"] and not on_gpu:
        same = (
            "use nodes of one kind, or, if one company made them all, export"
            " ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2 here"
        )
        return (
            f"has another kind of CPU ({there['cpu']}; this host: {here['cpu']}), which gives other"
            f" bits: {same}"
        )
    if on_gpu and there["cuda"] is None:
        return (
            f"has a PyTorch without CUDA ({there['torch']}) and GPUs: install a CUDA build, or use"
            " device=cpu"
        )
    if there["unseen"]:
        return (
            f"does not see {there['unseen'][0]}: it must lie on a file system that all nodes share"
        )
    if there["unwritable"]:
        return f"cannot write to {there['unwritable'][0]}: let this user write there on every node"
    if "unprepared" in there:
        return (
            f"cannot train a client ({there['unprepared']}): data, weights and modules that a run"
            " names must be there on every node"
        )
    if here["partition"] != there["partition"]:
        return "finds other data than this host: what a run names must be the same on every node"
    return ""


def _kind_of_cpu(capability: str) -> str:
    """What kernels are chosen by: PyTorch's word for it, the processor's maker, what the libraries
    were told, and, unless all were, the processor's extensions of this sort."""
    capability = f"{capability} {maker_of_cpu()}".strip()
    pinned = {name: os.environ[name] for name in _PINS if name in os.environ}
    if len(pinned) == len(_PINS):
        return f"{capability}, {' '.join(pinned.values())}"
    capability = " ".join([capability, *map("=".join, pinned.items())])
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("flags"):
                words = (word for word in line.split() if word.startswith(("avx", "amx", "fma")))
                return " ".join([capability, *sorted(words)])
    return f"{capability} {platform.machine()}"


def _ask(address: str, request: Mapping[str, Any], patience: float) -> dict[str, Any]:
    """What this file, run as a program, answers. Raises UserError with what it fails of."""
    told = json.dumps({"address": address, **request})
    command, environment = processes.ours(__name__, "-W", "ignore")
    quiet = dict.fromkeys(("RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_UV_RUN_RUNTIME_ENV"), "0")
    environment |= quiet | {ADDRESS: address, **MERGED}
    try:
        done = subprocess.run(
            command,
            input=told,
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"ray is {address!r}, and no Ray cluster takes us in there within {patience:g} s"
        ) from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        answer = {"error": said[-1]}
    if "error" in answer:
        raise UserError(f"ray is {address!r}, and this host cannot join it: {answer['error']}")
    return answer


def _looks(look: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By node, what a task on it found."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task, tasks = ray.remote(num_cpus=0, max_retries=0)(look_around), {}
    for node in look["nodes"]:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        tasks[node] = task.options(scheduling_strategy=there).remote(
            look["files"], look["token"], look["keys"]
        )
    ray.wait(list(tasks.values()), num_returns=len(tasks), timeout=_TASK)
    found = {}
    for node, answer in tasks.items():
        try:
            found[node] = ray.get(answer, timeout=0.1)
        except Exception as error:
            found[node] = {"silent": (str(error).strip().splitlines() or [type(error).__name__])[0]}
    return found


def main() -> None:
    """The program's side: what standard input asks, answered as a line on standard output."""
    import ray

    asked = json.load(sys.stdin)
    look = asked.get("look")
    variables = {"PYTHONPATH": os.environ["PYTHONPATH"], **(look["environment"] if look else {})}
    try:
        ray.init(
            address=asked["address"],
            runtime_env={"env_vars": variables},
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
        answer = {"looks": _looks(look)} if look else {"nodes": ray.nodes()}
    except Exception as error:
        answer = {"error": " ".join(str(error).split())[:300] or type(error).__name__}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
