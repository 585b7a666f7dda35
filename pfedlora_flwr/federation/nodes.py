"""The Ray nodes of a simulation, as its own processes see them: which one this is, and which are
gone."""

from __future__ import annotations

import sys
import time
from typing import Any

WORKER_GONE = "a process that trains clients is gone"
"""How the error of a run begins that has lost one, and its Ray node is there."""
_PATIENCE, _LOOK = 60.0, 0.5
"""Seconds in which Ray notices that a node is gone, once an actor on it is, and between two
looks."""


def this_node() -> str | None:
    """Ray's id of the node that this process runs on; None where Ray did not start it."""
    ray = _ray()
    return str(ray.get_runtime_context().get_node_id()) if ray else None


def in_simulation() -> bool:
    """Whether this process is an actor of Ray's, as those in which Flower simulates clients are."""
    ray = _ray()
    return ray is not None and ray.get_runtime_context().get_actor_id() is not None


def living_nodes() -> frozenset[str]:
    """Ray's ids of the nodes that are there; none without Ray."""
    ray = _ray()
    return (
        frozenset(node["NodeID"] for node in ray.nodes() if node["Alive"]) if ray else frozenset()
    )


def lost_nodes(before: frozenset[str]) -> list[str]:
    """Those of the nodes that are gone, by their address and the beginning of Ray's id. Waits until
    Ray may know; empty: none is."""
    ray, deadline = _ray(), time.monotonic() + _PATIENCE
    while ray and len(before) > 1:
        gone = [node for node in ray.nodes() if node["NodeID"] in before and not node["Alive"]]
        if gone or time.monotonic() > deadline:
            return [f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})" for node in gone]
        time.sleep(_LOOK)
    return []


def _ray() -> Any:
    """Ray, where this process is a part of it. Not imported: a process that Ray did not start needs
    none."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None
