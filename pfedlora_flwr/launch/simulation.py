"""A simulation in processes of our own: a private SuperLink, one `flwr run`, and nothing left behind.

Every process that this starts, Ray's daemons included, inherits a marker in its environment, and is found and stopped by it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from pfedlora_flwr import __version__
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.keys import Scalar, UserError
from pfedlora_flwr.runs.directory import RunDirectory, in_use

MARKER = "PFEDLORA_LAUNCH"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
"""Nothing calls out, Flower builds no environment of its own, clients train at the priority of any other program, and glibc
keeps freed memory for the next client's tensors instead of having the kernel clear new pages for each."""
_APP = """[project]
name = "pfedlora-flwr"
version = "{version}"
description = "pFedLoRA"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "pfedlora"

[tool.flwr.app.components]
serverapp = "pfedlora_flwr.server_app:app"
clientapp = "pfedlora_flwr.client_app:app"

[tool.flwr.app.config]
{config}
"""


_EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Failed|Refused)\b.*: \S")


_SHORT = 30
"""Characters of a folder in which Ray's sockets still have a name that the system accepts."""


class LaunchError(RuntimeError):
    """The simulation could not be started; the text says what its processes said last."""


class Simulation:
    """One run in a private Flower simulation. Use it as a context manager: leaving it stops every process it started."""

    def __init__(self, experiment: Experiment, run: Path, actors: int, gpus: float, port: int = 0) -> None:
        self.experiment = experiment
        self.directory = RunDirectory(run)
        self.logs = self.directory.logs
        self.actors = actors
        self.gpus = gpus
        self.port = port or free_port()
        self.marker = f"{os.getpid()}-{time.time_ns()}"
        self.run_id = ""
        self._superlink: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Simulation:
        check_port(self.port)
        self._home = Path(tempfile.mkdtemp(prefix="pfedlora-"))
        self.directory.launch_file.write_text(json.dumps({"marker": self.marker, "home": str(self._home)}))
        return self

    def __exit__(self, *error: object) -> None:
        kept = [(s, signal.signal(s, signal.SIG_IGN)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        try:
            stop_marked(self.marker)
            if self._superlink is not None:
                self._superlink.wait()
            shutil.rmtree(self._home, ignore_errors=True)
            self.directory.launch_file.unlink(missing_ok=True)
        finally:
            for number, handler in kept:
                signal.signal(number, handler)

    def start(self, timeout: float = 60.0) -> None:
        """Starts the SuperLink and submits the run. Raises LaunchError when either does not come up."""
        (self._home / "config.toml").write_text(
            f'[superlink]\ndefault = "private"\n\n[superlink.private]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        options = [
            "--insecure",
            "--simulation",
            "--disable-runtime-dependency-installation",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        with (self.logs / "superlink.log").open("wb") as log:
            self._superlink = subprocess.Popen(
                [tool("flower-superlink"), *options],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us alone: we stop the rest in order
            )
        deadline = time.monotonic() + timeout
        while not self._healthy():
            if self._superlink.poll() is not None or time.monotonic() > deadline:
                raise LaunchError(f"the SuperLink did not start: {last_line(self.logs / 'superlink.log')}")
            time.sleep(0.05)
        self._submit()

    def alive(self) -> bool:
        """Whether the SuperLink still runs."""
        return self._superlink is not None and self._superlink.poll() is None

    def status(self) -> str:
        """What Flower says of the run, in its words."""
        try:
            return str(json.loads(self._flwr("list", "private", "--format", "json"))["runs"][0]["status"])
        except (ValueError, KeyError, IndexError):
            return "unknown"

    def save_log(self) -> None:
        """Writes what the app and its actors have logged to `logs/run.log`."""
        if self.run_id and self.alive():
            (self.logs / "run.log").write_text(self._flwr("log", self.run_id, "private", "--show"))

    def _flwr(self, *words: str) -> str:
        command = [tool("flwr"), *words]
        try:
            done = subprocess.run(
                command, env=self._environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
            )
        except subprocess.TimeoutExpired:
            raise LaunchError(f"`flwr {words[0]}` did not answer within a minute") from None
        if done.returncode:
            (self.logs / "flwr.log").write_text(done.stdout + done.stderr)
            raise LaunchError(f"`flwr {words[0]}` failed: {last_line(self.logs / 'flwr.log')}")
        return done.stdout

    def _submit(self) -> None:
        app = write_app(self._home / "app", self.experiment)
        federation = (
            f"num-supernodes={self.experiment.clients} client-resources-num-cpus=1 client-resources-num-gpus={self.gpus / self.actors} "
            f"init-args-num-cpus={self.actors}"
        )
        self.run_id = str(
            json.loads(self._flwr("run", str(app), "private", "--federation-config", federation, "--format", "json"))["run-id"]
        )

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def _environment(self) -> dict[str, str]:
        e = self.experiment
        tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        own = {"FLWR_HOME": str(self._home), MARKER: self.marker, "PATH": tools}
        if len(str(self._home)) < _SHORT:
            own["RAY_TMPDIR"] = str(self._home)  # so that Ray's sessions go when we go
        if ":" in e.method or ":" in e.models:  # a user's own module may lie in the working directory
            own["PYTHONPATH"] = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
        return os.environ | QUIET | own


def write_app(folder: Path, experiment: Experiment) -> Path:
    """A Flower app that holds the configuration alone: the code is what is installed where it runs. Returns its new folder."""
    folder.mkdir()
    config = "\n".join(f"{json.dumps(name)} = {_toml(value)}" for name, value in experiment.flat().items())
    (folder / "pyproject.toml").write_text(_APP.format(version=__version__, config=config))
    return folder


def stop_marked(marker: str, patience: float = 1.0) -> int:
    """Stops every process that carries the marker: asks first, then kills. Returns how many there were."""
    found = list(marked(marker))
    for process in found:
        _quietly(process.terminate)
    stubborn = [*_still_running(found, patience), *marked(marker)]
    for process in stubborn:
        _quietly(process.kill)
    _still_running(stubborn, patience)
    return len(found)


def _still_running(processes: list[psutil.Process], patience: float) -> list[psutil.Process]:
    """Waits until none runs, at most `patience` seconds; returns those that still do. (psutil's own wait takes an ended process
    for a running one until its parent has collected it: an orphan's may never.)"""
    deadline = time.monotonic() + patience
    while (left := [process for process in processes if runs(process.pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def stop_left_over(run: Path) -> int:
    """Stops what a launcher that was killed left running for this run; returns how many processes there were."""
    try:
        left = json.loads(RunDirectory(run).launch_file.read_text())
        stopped = stop_marked(left["marker"])
        shutil.rmtree(left["home"], ignore_errors=True)
    except (OSError, ValueError, KeyError):
        return 0
    return stopped


@contextlib.contextmanager
def claimed(run: Path) -> Iterator[None]:
    """Holds the run's directory for this launcher, from before anything is started until all is stopped.

    Raises UserError when another launcher holds it, or it cannot be written.
    """
    directory = RunDirectory(run)
    lock = FileLock(directory.launch_lock)
    try:
        directory.logs.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:  # an OSError too
        raise in_use(run) from None
    except OSError as error:
        raise UserError(f"output {str(run)!r} cannot be written ({error.strerror or error}); choose another") from None
    try:
        yield
    finally:
        lock.release()


def marked(marker: str) -> Iterator[psutil.Process]:
    """The running processes whose environment carries the marker, this one left out."""
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARKER) == marker and runs(process.pid):
                yield process
        except (psutil.Error, OSError):
            continue


def runs(pid: int) -> bool:
    """Whether the process runs: one that was killed may stay as a zombie, since Flower does not wait for it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(port: int) -> None:
    """Raises UserError when the port is no port or something listens on it."""
    if not 0 < port < 2**16:
        raise UserError(f"port is {port}; allowed: 0 to 65535, 0 for a free one")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(f"port {port} cannot be used ({error.strerror}); choose another, or leave --port out for a free one") from None


def last_line(log: Path) -> str:
    """The last line of a log that says something, an exception's before any other."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip(" │╰╭─╮╯\n")]
    except OSError:
        lines = []
    lines = [line for line in lines if _EXCEPTION.match(line)] or lines
    return f"{lines[-1][:300]} (see {log})" if lines else f"nothing in {log}"


def tool(name: str) -> str:
    """A command of this Python environment."""
    return str(Path(sys.executable).with_name(name))


def _toml(value: Scalar) -> str:
    return json.dumps(value, ensure_ascii=False)


def _quietly(action: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.Error):
        action()
