"""A simulation in processes of our own: a private SuperLink, one `flwr run`, and nothing left
behind.

Every process that this starts, Ray's daemons included, inherits a marker in its environment, and is
found and stopped by it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock, Timeout

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.errors.log_lines import cause_line
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.federation.nodes import WORKER_GONE
from pfedlora_flwr.files import LOOK, cache_root, made
from pfedlora_flwr.launch import cluster
from pfedlora_flwr.launch.flower import (
    QUIET,
    FlwrCommand,
    LaunchError,
    environment,
    last_line,
    tool,
    write_app,
)
from pfedlora_flwr.launch.processes import (
    MARKER,
    SIGNALS,
    check_port,
    code_path,
    free_port,
    handled,
    is_running,
    stop_marked,
)
from pfedlora_flwr.launch.resources import Resources
from pfedlora_flwr.runs.code_copy import named_modules
from pfedlora_flwr.runs.directory import RunDirectory, in_use
from pfedlora_flwr.runs.layout import Row
from pfedlora_flwr.runs.lines import SoFar
from pfedlora_flwr.training.device import GPU_SHARE, memory_share

_SUPERLINK_TIMEOUT, _SERVER_TIMEOUT, _LOOK = 60.0, 180.0, 15.0
"""Seconds: for the SuperLink to answer, for the server to say something, and between two questions
to Flower until it does."""
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks this machine itself, whatever proxy the environment names."""
_DEBUGGER = re.compile(r"^\s*(breakpoint|(i?pdb)\.set_trace)\(", re.MULTILINE)
_BREAKPOINT = "own code calls a debugger, which stops by engine=local alone"
_SHORT = 30
"""Characters of a folder in which Ray's sockets still have a name that the system accepts."""


class Simulation:
    """One run in a private Flower simulation. Use it as a context manager: leaving it stops every
    process it started."""

    def __init__(
        self, config: RunConfig, run: RunDirectory, resources: Resources, port: int = 0
    ) -> None:
        self.config = config
        self.directory = run
        self.resources = resources
        self.cluster = cluster.address_of(config.execution)
        self.port = port or free_port()
        self.marker = f"{os.getpid()}-{time.time_ns()}"
        self._run_id = ""
        self._superlink: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Simulation:
        check_port(self.port)
        self._home = Path(tempfile.mkdtemp(prefix="pfedlora-"))
        self._flwr = FlwrCommand("private", self._environment(), self.directory.logs / "flwr.log")
        self.directory.launch_file.write_text(
            json.dumps({"marker": self.marker, "home": str(self._home)})
        )
        return self

    def __exit__(self, *error: object) -> None:
        with handled(signal.SIG_IGN, *SIGNALS):
            stop_marked(self.marker)
            if self._superlink is not None:
                self._superlink.wait()
            shutil.rmtree(self._home, ignore_errors=True)
            self.directory.launch_file.unlink(missing_ok=True)

    def join(self) -> list[str]:
        """Lines that say on which Ray cluster the run trains, or, on this machine, by how many
        actors where they are fewer than wanted.

        Raises UserError if a node of the cluster cannot train its clients.
        """
        if not self.cluster:
            few = self.resources.actors < self.resources.wanted
            stops = any(map(_stops, named_modules(self.config.flat())))
            return [f"trained by {self.resources.words()}"] * few + [_BREAKPOINT] * stops
        cluster.check_nodes(
            self.cluster,
            self.resources.nodes,
            self.config,
            self._for_workers(),
            [self.directory.logs, made(cache_root())],
        )
        told = ""
        if not self.config.execution.ray:
            private = f"{cluster.ADDRESS}={cluster.PRIVATE} keeps to this machine"
            told = f"{cluster.ADDRESS} is set ({private}): "
        return [f"{told}joins the Ray cluster at {self.cluster}: {self.resources.words()}"]

    def run(self, show: Callable[[Row | None, SoFar], None]) -> None:
        """Starts the run and shows it until its result is there. Raises LaunchError when none will
        come."""
        show({"phase": "superlink"}, SoFar())
        earlier = self.directory.doing()
        self._start_superlink()
        show({"phase": "submitting"}, SoFar())
        self._submit()
        try:
            self._watch(show, earlier)
        except LaunchError:
            self._check_cluster()
            raise

    def save_log(self) -> None:
        """Writes what the app and its actors have logged to `logs/run.log`."""
        if self._run_id and self._alive():
            with contextlib.suppress(OSError):  # a full disk: it is only there to be read
                self._run_log.write_text(self._flwr.log(self._run_id), encoding="utf-8")

    def lost(self) -> str:
        """A process that trained clients, or the nodes of the Ray cluster that are gone, in words,
        where others are left."""
        result = self.directory.result()
        worker = WORKER_GONE if result and (result["error"] or "").startswith(WORKER_GONE) else ""
        if not self.cluster:
            return worker
        cluster.find_nodes.cache_clear()
        try:
            left = cluster.find_nodes(self.cluster)
        except UserError:  # the run's own reason says more
            return ""
        there = {other.id for other in left}
        gone = [node.name for node in self.resources.nodes if node.id not in there]
        return f"the Ray node {', '.join(gone)} is gone" if gone and left else worker

    @property
    def _superlink_log(self) -> Path:
        return self.directory.logs / "superlink.log"

    @property
    def _run_log(self) -> Path:
        return self.directory.logs / "run.log"

    def _start_superlink(self) -> None:
        (self._home / "config.toml").write_text(
            '[superlink]\ndefault = "private"\n\n[superlink.private]\naddress ='
            f' "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        command = [tool("flower-superlink"), "--insecure", "--simulation"]
        command += ["--disable-runtime-dependency-installation"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        with self._superlink_log.open("wb") as log:
            self._superlink = subprocess.Popen(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us alone: we stop the rest in order
            )
        deadline = time.monotonic() + _SUPERLINK_TIMEOUT
        while not self._healthy():
            if not self._alive() or time.monotonic() > deadline:
                raise LaunchError(f"the SuperLink did not start: {last_line(self._superlink_log)}")
            time.sleep(0.05)

    def _submit(self) -> None:
        app = write_app(self._home / "app", self.config)
        held = self.resources
        federation = (
            f"num-supernodes={self.config.experiment.clients} client-resources-num-cpus={held.cpus}"
            f" client-resources-num-gpus={held.gpu}"
        )
        if not self.cluster:  # which Ray starts with so many; a cluster has what it has
            federation += f" init-args-num-cpus={held.actors}"
        self._run_id = self._flwr.run(app, "--federation-config", federation)

    def _watch(self, show: Callable[[Row | None, SoFar], None], earlier: Row | None) -> None:
        """Shows the run until its result is there, or its server is gone. earlier: what the
        directory said before it was started, by an earlier server."""
        directory = self.directory
        deadline, next_look = time.monotonic() + _SERVER_TIMEOUT, time.monotonic() + _LOOK
        rounds, so_far = directory.watched(), SoFar()
        while directory.result() is None:
            state = directory.doing()
            if state == earlier:  # this server has not taken up the directory yet
                state = None
            if state:
                so_far = rounds.look()
            show(state, so_far)
            if not self._alive():
                raise LaunchError(f"the SuperLink is gone: {last_line(self._superlink_log)}")
            if state and not is_running(state["pid"]):
                time.sleep(0.5)
                if directory.result() is None:
                    raise LaunchError(self._gone())
            if not state and time.monotonic() > next_look:
                status, next_look = self._flwr.status(self._run_id), time.monotonic() + _LOOK
                if status.startswith("finished") or time.monotonic() > deadline:
                    raise LaunchError(self._gone(f"did not start (Flower says {status})"))
            time.sleep(0.1)
        show(None, rounds.look())

    def _gone(self, how: str = "is gone") -> str:
        """Why there is no server: by the run's own log, else the SuperLink's. Ray gives up after 30
        seconds, as on a busy machine."""
        with contextlib.suppress(LaunchError):
            self.save_log()
        log = self._run_log if self._run_log.exists() else self._superlink_log
        told = f"the server process {how}: {last_line(log, cause_line)}"
        busy = "; the machine is busy: try again, or engine=local" if "timed out" in told else ""
        return told + busy

    def _check_cluster(self) -> None:
        """Raises LaunchError if the Ray cluster is gone: the server goes with its head, without
        a word."""
        with contextlib.suppress(UserError):
            if self.cluster:
                cluster.check_address(self.cluster)
            return
        raise LaunchError(f"the Ray cluster at {self.cluster} no longer answers") from None

    def _alive(self) -> bool:
        return self._superlink is not None and self._superlink.poll() is None

    def _healthy(self) -> bool:
        try:
            with _DIRECTLY.open(f"http://127.0.0.1:{self.port}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _environment(self) -> dict[str, str]:
        own = {
            "FLWR_HOME": str(self._home),
            MARKER: self.marker,
            cluster.ADDRESS: self.cluster or cluster.PRIVATE,
        } | self._share()
        if self.cluster:
            own |= {cluster.JOB_CONFIG: cluster.job_config(self._for_workers()), **cluster.MERGED}
        elif len(str(self._home)) < _SHORT:
            own["RAY_TMPDIR"] = str(self._home)  # so that Ray's sessions go when we go
        # a user's own module may lie in the working directory
        if named_modules(self.config.flat()):
            own["PYTHONPATH"] = code_path()
        return environment(here=True, **own)

    def _for_workers(self) -> dict[str, str]:
        """The environment of a foreign cluster's workers."""
        return cluster.worker_environment(QUIET | {MARKER: self.marker} | self._share())

    def _share(self) -> dict[str, str]:
        """What each actor may take of its GPU's memory, of what we may."""
        if self.resources.per_gpu:
            return {GPU_SHARE: str(memory_share() / self.resources.per_gpu)}
        return {}


def _stops(module: str) -> bool:
    """Whether a module of the user's own code calls a debugger."""
    with contextlib.suppress(ImportError, OSError, ValueError, UnicodeDecodeError):
        if (spec := find_spec(module)) and spec.origin:
            return bool(_DEBUGGER.search(Path(spec.origin).read_text("utf-8")))
    return False


@contextlib.contextmanager
def claimed(run: Path) -> Iterator[None]:
    """Holds the run's directory for this launcher, from before anything is started until all is
    stopped.

    Raises UserError when another launcher holds it, or it cannot be written.
    """
    directory = RunDirectory(run)
    lock = FileLock(directory.launch_lock)
    try:
        directory.logs.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=LOOK)
    except Timeout:  # an OSError too
        raise in_use(run) from None
    except OSError as error:
        raise UserError(
            f"output {str(run)!r} cannot be written ({error.strerror or error}); choose another"
        ) from None
    try:
        yield
    finally:
        lock.release()


def stop_left_over(run: Path) -> int:
    """Stops what a launcher that was killed left running for this run; returns how many processes
    there were."""
    told, stopped = RunDirectory(run).launch_file, 0
    with contextlib.suppress(OSError, ValueError, KeyError):
        left = json.loads(told.read_text())
        stopped = stop_marked(left["marker"])
        shutil.rmtree(left["home"], ignore_errors=True)
    with contextlib.suppress(OSError):
        told.unlink(missing_ok=True)
    return stopped
