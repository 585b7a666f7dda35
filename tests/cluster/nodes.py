"""A Ray cluster of this machine's, a process a node, of which one can be killed; nothing else on
the machine is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from pfedlora_flwr.launch.cluster import ADDRESS, find_nodes
from pfedlora_flwr.launch.processes import MARKER, free_port, is_running

_MEMORY = 80 * 2**20
"""Bytes of a node's object store, about the least that Ray takes."""


class Cluster:
    """A head and another node, with a CPU each. Leaving it ends both."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ray-"))
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._nodes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        self._start("--head", f"--port={self._port}", "--include-dashboard=false")
        self.add()
        return self

    def __exit__(self, *error: object) -> None:
        for node in reversed(self._nodes):
            for process in (
                [*_below(node), psutil.Process(node.pid)] if is_running(node.pid) else []
            ):
                process.kill()
            node.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self) -> None:
        """One more node, once it is there."""
        self._start(f"--address={self.address}")

    def kill_last(self) -> None:
        """Kills the raylet of the node that was added last, as if its host lost its power."""
        self._kill(self._nodes[-1], "raylet")

    def kill_head(self) -> None:
        """Kills what the cluster is known by."""
        self._kill(self._nodes[0], "gcs_server")

    def nodes(self) -> set[str]:
        """Ray's ids of the living nodes."""
        find_nodes.cache_clear()
        return {node.id for node in find_nodes(self.address)}

    def workers(self) -> list[psutil.Process]:
        """What runs on it for somebody: actors and tasks, and idle workers of ours. Ray itself
        keeps an idle one that is nobody's."""
        running = [
            process for node in self._nodes for process in _below(node) if is_running(process.pid)
        ]
        titles = [next(iter(process.cmdline()), "") for process in running]
        busy = [
            title.startswith("ray::") and "Agent" not in title and title != "ray::IDLE"
            for title in titles
        ]
        return [
            process
            for process, works in zip(running, busy, strict=True)
            if works or MARKER in process.environ()
        ]

    def left(self, patience: float = 60) -> list[psutil.Process]:
        """Its workers after at most so many seconds in which they may end."""
        deadline = time.monotonic() + patience
        while (left := self.workers()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left

    @staticmethod
    def _kill(node: subprocess.Popen[bytes], name: str) -> None:
        [daemon] = [
            process for process in psutil.Process(node.pid).children() if process.name() == name
        ]
        daemon.kill()

    def _start(self, *words: str) -> None:
        sizes = ["--num-cpus=1", "--num-gpus=0", f"--object-store-memory={_MEMORY}"]
        command = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            *words,
            *sizes,
            "--node-ip-address=127.0.0.1",
        ]
        environment = {name: value for name, value in os.environ.items() if name != ADDRESS}
        log = self._folder / f"node{len(self._nodes)}.log"
        with log.open("wb") as file:
            node = subprocess.Popen(
                [*command, "--disable-usage-stats", "--block"],
                env=environment | {"RAY_TMPDIR": str(self._folder), "RAY_worker_niceness": "0"},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._nodes.append(node)
        deadline = time.monotonic() + 90
        while "--block" not in log.read_text(errors="replace"):
            if node.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(log.read_text(errors="replace"))
            time.sleep(0.2)


def _below(node: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(node.pid).children(recursive=True) if is_running(node.pid) else []
