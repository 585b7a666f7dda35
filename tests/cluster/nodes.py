"""A Ray cluster of this machine's, one process a node that can be killed; nothing else on the machine is touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from pfedlora_flwr.launch.processes import free_port, is_running

_MEMORY = 80 * 2**20
"""Bytes of a node's object store, about the least that Ray takes."""


class Cluster:
    """A head and further nodes, with a CPU each. Leaving it ends all of them."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))
        self.address = f"127.0.0.1:{free_port()}"
        self._nodes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        self.add("--head", f"--port={self.address.partition(':')[2]}", "--include-dashboard=false")
        self.add(f"--address={self.address}")
        return self

    def __exit__(self, *error: object) -> None:
        for node in self._nodes[::-1]:
            self._end(node)
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, *words: str) -> None:
        """A node, once it is there."""
        command = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            *words,
            "--node-ip-address=127.0.0.1",
            "--num-cpus=1",
            "--num-gpus=0",
        ]
        command += [f"--object-store-memory={_MEMORY}", "--disable-usage-stats", "--block"]
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        log = (self.folder / f"node{len(self._nodes)}.log").open("wb")
        with log:
            node = subprocess.Popen(
                command,
                env=environment | {"RAY_TMPDIR": str(self.folder), "RAY_worker_niceness": "0"},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._nodes.append(node)
        deadline = time.monotonic() + 90
        while b"--block" not in Path(log.name).read_bytes():
            assert node.poll() is None and time.monotonic() < deadline, Path(log.name).read_text()
            time.sleep(0.2)

    def kill(self, node: int) -> None:
        """Kills a node's raylet, as a host that loses its power."""
        [raylet] = [p for p in psutil.Process(self._nodes[node].pid).children() if p.name() == "raylet"]
        raylet.kill()

    def daemons(self) -> set[int]:
        """The processes of the cluster itself: what `ray start` started, without workers."""
        found = set()
        for node in self._nodes:
            if is_running(node.pid):
                found |= {node.pid, *(p.pid for p in psutil.Process(node.pid).children() if is_running(p.pid))}
        return found

    def workers(self) -> list[str]:
        """Ray's workers on it, idle ones too, by their titles."""
        children = [p for node in self._nodes if is_running(node.pid) for p in psutil.Process(node.pid).children(recursive=True)]
        titles = [" ".join(p.cmdline()) for p in children if is_running(p.pid)]
        return [title for title in titles if title.startswith("ray::") and "Agent" not in title]

    @staticmethod
    def _end(node: subprocess.Popen[bytes]) -> None:
        if is_running(node.pid):
            below = psutil.Process(node.pid).children(recursive=True)
            for process in below:
                if is_running(process.pid):
                    process.send_signal(signal.SIGKILL)
        node.kill()
        node.wait()
