"""A federation of real processes for tests: a SuperLink, SuperNodes and a submitter, all found and
stopped by one marker."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil

from pfedlora_flwr.errors.permissions import VARIABLE
from pfedlora_flwr.launch.flower import QUIET, tool
from pfedlora_flwr.launch.processes import MARKER, free_port, marked, stop_marked
from tests.conftest import ROOT, key_words, result_of

OWN_CODE = "tests.deployment.paced tests.methods.narrow"
"""The modules that the server and the nodes allow."""
PATIENCE = 240.0
"""Seconds that anything here may take before the test fails."""
_SHOWN = 20
"""Lines of each log that are printed after an error."""


class Federation:
    """Processes in one folder; the run goes to `output`. Leaving the context kills whatever is left
    of them, and after an error prints the end of each one's log.

    tls: the folder that `scripts/certificates.py` made. isolation: Flower's, of ServerApp and
    ClientApps."""

    def __init__(
        self,
        folder: Path,
        *,
        tls: Path | None = None,
        isolation: str = "subprocess",
        **environment: str,
    ) -> None:
        self.folder = folder
        self.tls = tls
        self.isolation = isolation
        self.marker = f"test-{os.getpid()}-{time.time_ns()}"
        self.port = free_port()
        self.output = folder / "run"
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        home = folder / "flwr"
        home.mkdir(parents=True)
        trust = "insecure = true" if tls is None else f'root-certificates = "{tls / "ca.crt"}"'
        (home / "config.toml").write_text(
            f'[superlink.test]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )
        tools = os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        )
        own = {"FLWR_HOME": str(home), MARKER: self.marker, "PYTHONPATH": str(ROOT), "PATH": tools}
        own[VARIABLE] = f"output-root='{folder.parent}' allow-code='{OWN_CODE}'"
        self.environment = (
            os.environ | QUIET | {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"} | own | environment
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        stop_marked(self.marker, patience=3)
        if error[0] is not None:
            for log in sorted(self.folder.glob("*.log")):
                print(f"== {log.name}", *self.log(log.stem).splitlines()[-_SHOWN:], sep="\n")

    def spawn(self, name: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """Starts a command, its output into NAME.log. It is a session of its own, as a service is:
        where Linux shares the processor out by sessions, each has its share on a busy machine."""
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [tool(command[0]), *command[1:]],
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )

    def start_superlink(self, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        """Starts the SuperLink, or starts it again, and waits until it answers."""
        security = ["--insecure"]
        if self.tls is not None:
            security = [
                "--ssl-ca-certfile",
                str(self.tls / "ca.crt"),
                "--ssl-certfile",
                str(self.tls / "server.pem"),
            ]
            security += ["--ssl-keyfile", str(self.tls / "server.key"), "--enable-supernode-auth"]
        where = [
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--database",
            str(self.folder / "superlink.db"),
        ]
        self.superlink = self.spawn(
            "superlink",
            "flower-superlink",
            *security,
            *where,
            "--isolation",
            self.isolation,
            *options,
            **environment,
        )
        wait(self._answers, self.superlink)
        return self.superlink

    def start_superexec(self, name: str, port: int) -> None:
        """With process isolation: what starts the apps of a SuperLink or a SuperNode."""
        self.spawn(
            name, "flower-superexec", "--insecure", "--runtime-api-address", f"127.0.0.1:{port}"
        )

    def start_node(
        self, client: int, *options: str, key: str = "", ca: Path | None = None, **config: Any
    ) -> subprocess.Popen[bytes]:
        """Starts the SuperNode `client`, or starts it again, with a state-path of its own and this
        node-config."""
        config = {"state-path": str(self.folder / f"state{client}"), "allow-code": OWN_CODE} | {
            name.replace("_", "-"): value for name, value in config.items()
        }
        words = [
            "--node-config",
            " ".join(f"{name}={json.dumps(value)}" for name, value in config.items()),
        ]
        port = free_port()
        words += [
            "--superlink",
            f"127.0.0.1:{self.port}",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--isolation",
            self.isolation,
        ]
        if self.tls is None:
            words.append("--insecure")
        else:
            words += ["--root-certificates", str(ca or self.tls / "ca.crt")]
            words += ["--auth-supernode-private-key", str(self.tls / (key or f"node{client}"))]
        self.nodes[client] = self.spawn(f"node{client}", "flower-supernode", *words, *options)
        if self.isolation == "process":
            self.start_superexec(f"superexec{client}", port)
        return self.nodes[client]

    def stop_node(self, client: int) -> None:
        """Ends a SuperNode as a service manager does: it takes its leave of the SuperLink."""
        node = self.nodes.pop(client)
        node.terminate()
        node.wait(PATIENCE)

    def submit(self, keys: dict[str, Any], *words: str) -> subprocess.Popen[bytes]:
        """Starts `pfedlora run --superlink` with these keys."""
        options = key_words({"output": self.output} | keys)
        return self.spawn("submit", "pfedlora", "run", "--superlink", "test", *options, *words)

    def run(self, keys: dict[str, Any], *words: str) -> int:
        """The same to its end; the exit code."""
        return self.submit(keys, *words).wait(2 * PATIENCE)

    def flwr(self, *words: str) -> str:
        """The `flwr` command against this SuperLink."""
        done = subprocess.run(
            [tool("flwr"), *words, "test"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def result(self) -> dict[str, Any]:
        return result_of(self.output)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def processes(self, word: str) -> list[psutil.Process]:
        """The federation's processes whose command line holds `word`."""
        found = []
        for process in marked(self.marker):
            with contextlib.suppress(psutil.Error):
                if any(word in part for part in process.cmdline()):
                    found.append(process)
        return found

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1),
        ):
            return True
        return False


def wait(
    ready: Callable[[], object],
    process: subprocess.Popen[Any] | None = None,
    patience: float = PATIENCE,
) -> None:
    """Waits until `ready()`; fails when `process` ends before, or time runs out."""
    deadline = time.monotonic() + patience
    while not ready():
        assert process is None or process.poll() is None, (
            f"{process.args!r} ended with {process.returncode}"
        )
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)
