"""What a simulation has to train on: its actors, and what each of them holds of a machine or of a
Ray cluster."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pfedlora_flwr.errors import UserError, counted, wrong
from pfedlora_flwr.execution import Execution, RunConfig
from pfedlora_flwr.launch.cluster import Node, address_of, find_nodes
from pfedlora_flwr.training.device import find_device

ENGINES = ("flower", "local")
"""`flwr run` on a SuperLink of our own, with Ray's actors; or everything in this process, one
client at a time."""
_UNITS = 10_000
"""Parts of a GPU that Ray tells apart."""
_MOST_THREADS, _MORE_THREADS = 32, 4
"""Flower hands messages to actors in a thread pool of Python's default size: as many threads as
cores and a few more, at most 32. To the actor that was free last, so that any beyond these would
never train."""


@dataclass(frozen=True)
class Resources:
    """actors: processes that train a client at a time. cpus: that each holds, as Ray counts them.
    gpus: of all. per_gpu: actors that share a GPU, 0 without one. nodes: of the Ray cluster, none
    on this machine alone. wanted: actors, if they could all be of use."""

    actors: int
    cpus: int = 1
    gpus: int = 0
    per_gpu: int = 0
    nodes: tuple[Node, ...] = ()
    wanted: int = field(default=0, compare=False)

    @property
    def gpu(self) -> float:
        """The share of a GPU that an actor holds; as Flower sends it, in 32 bits, so many of them
        fit."""
        return gpu_share(self.per_gpu) if self.per_gpu else 0.0

    @property
    def at_once(self) -> int:
        """Clients that train at once."""
        return min(self.actors, most_at_once())

    def words(self) -> str:
        """In a line."""
        where = f" on {counted(len(self.nodes), 'Ray node')}" if self.nodes else ""
        gpus = ""
        if self.per_gpu:
            part = f"{1 / self.per_gpu:.0%} of its memory"
            gpus = f", {self.per_gpu} a GPU of {self.gpus}, each with {part}"
        bound = ""
        if most_at_once() < self.wanted:
            bound = f"; Flower trains at most {most_at_once()} clients at once here"
        of = f" of {self.wanted}" if self.actors < self.wanted else ""
        return f"{counted(self.actors, 'actor')}{of}{where}{gpus}{bound}"


def most_at_once() -> int:
    """Clients that Flower trains at once, from this machine."""
    # as Python's thread pool does, since 3.13 the former
    counted: int | None = getattr(os, "process_cpu_count", os.cpu_count)()
    return min(_MOST_THREADS, (counted or 1) + _MORE_THREADS)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_engine(engine: str, x: Execution, at_once: int = 1) -> None:
    """Raises UserError for an unknown one, or one that does not do so many runs at once where `x`
    says."""
    if engine not in ENGINES:
        raise UserError(f"engine is {engine!r}; allowed: {', '.join(ENGINES)}")
    if x.ray and engine != "flower":
        raise UserError(
            f"ray is {x.ray!r}, a cluster, and engine={engine} trains in this process: give only"
            " one"
        )
    if engine == "flower":
        x.check_lanes()
    if at_once > 1 and engine == "flower" and (address := address_of(x)):
        raise wrong(
            "jobs", at_once, f"1 on a Ray cluster ({address}), of which each run takes all CPUs"
        )


def fitting_engine(configs: Sequence[RunConfig]) -> str:
    """The local one where every run trains on this machine's CPU, or in lanes, else Flower."""
    gpu = torch.cuda.is_available() and any(
        c.experiment.device != "cpu" and c.execution.lanes == 1 for c in configs
    )
    return "flower" if gpu or any(address_of(c.execution) for c in configs) else "local"


def device_here(config: RunConfig) -> torch.device | None:
    """The clients' device; None on a cluster, whose devices need not be like this host's. Raises
    UserError where it is not here."""
    return None if address_of(config.execution) else find_device(config.experiment.device)


def resources(config: RunConfig, *, anew: bool = False) -> Resources:
    """As the key `actors` says; auto: one single-threaded actor a core, or one a GPU. Raises
    UserError for a cluster without room.

    anew: asks a cluster again: its nodes may come and go between two runs."""
    if anew:
        find_nodes.cache_clear()
    if address := address_of(config.execution):
        return of_cluster(config, address, find_nodes(address))
    clients, actors = max(1, config.experiment.clients), config.execution.actors
    if find_device(config.experiment.device).type != "cuda":
        wanted = min(actors or cores(), clients)
        return Resources(min(wanted, most_at_once()), wanted=wanted)
    gpus = torch.cuda.device_count()
    wanted = min(actors or gpus, clients)
    per_gpu = _each_gpu(wanted, gpus)
    return Resources(
        min(wanted, most_at_once(), gpus * per_gpu), gpus=gpus, per_gpu=per_gpu, wanted=wanted
    )


def of_cluster(config: RunConfig, address: str, nodes: Sequence[Node]) -> Resources:
    """The actors that Flower makes on a cluster: on each node as many as fit.

    Their number can be bounded by what each of them holds alone: fewer are wanted than there are
    CPUs where `actors` says so, or where there are fewer clients, or Flower trains fewer at once.
    On GPUs every one has the same number."""
    e, asked = config.experiment, config.execution.actors
    gpus = sum(node.gpus for node in nodes)
    if e.device == "cuda" and not gpus:
        raise UserError(
            f"device is 'cuda' and no node of the Ray cluster at {address} has a GPU; use"
            " device=cpu"
        )
    per_gpu = (
        _each_gpu(min(asked or gpus, max(1, e.clients)), gpus) if gpus and e.device != "cpu" else 0
    )

    def fitting(cpus: int) -> list[int]:
        return [min(n.cpus // cpus, n.gpus * per_gpu if per_gpu else n.cpus) for n in nodes]

    most = min(asked or sum(fitting(1)), max(1, e.clients))
    wanted = range(1, max((node.cpus for node in nodes), default=0) + 1)
    found = [
        (cpus, sum(fitting(cpus))) for cpus in ([1] if per_gpu else wanted) if sum(fitting(cpus))
    ]
    if not found:
        raise UserError(
            f"no node of the Ray cluster at {address} has a CPU{' and a GPU' if per_gpu else ''}"
            " for an actor"
        )
    allowed = [pair for pair in found if pair[1] <= most] or found[-1:]
    cpus, actors = max(allowed, key=lambda pair: (min(pair[1], most_at_once()), -pair[1]))
    used = tuple(node for node, count in zip(nodes, fitting(cpus), strict=True) if count)
    return Resources(actors, cpus, gpus if per_gpu else 0, per_gpu, used, most)


def _each_gpu(wanted: int, gpus: int) -> int:
    """Actors of a GPU, as many on each: Ray would fill one before it takes another."""
    return max(1, min(wanted, most_at_once()) // gpus)


def gpu_share(per_gpu: int) -> float:
    """1 / per_gpu, rounded down to what Ray tells apart and to 32 bits: neither Flower nor Ray then
    counts one actor too few."""
    share = np.float32(math.floor(_UNITS / per_gpu) / _UNITS)
    return float(share if float(share) * per_gpu <= 1 else np.nextafter(share, np.float32(0)))
