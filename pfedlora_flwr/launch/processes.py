"""Processes and ports: what we start carries a marker in its environment, and is found and stopped
by it; so are its children."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

import psutil

from pfedlora_flwr.errors import UserError

MARKER = "PFEDLORA_LAUNCH"
"""The environment variable that holds the marker."""
_HUNTS, _QUIET = 8, 2
"""At most so many hunts for what is left, and so many in a row that must find nothing."""
_PAUSE = 0.05
"""Seconds between two of them."""


def ours(module: str, *options: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs a module in a process of its own, and the environment in which it finds
    the very code that this process finds, also where a package of the same name lies in the current
    folder."""
    return [sys.executable, *options, "-P", "-m", module], os.environ | {"PYTHONPATH": code_path()}


def code_path() -> str:
    """The PYTHONPATH of a process that shall find the code that this one finds, and in the same
    order."""
    return os.pathsep.join(place or os.getcwd() for place in sys.path)


def marked(marker: str) -> Iterator[psutil.Process]:
    """The running processes whose environment carries the marker, this one left out."""
    for process in psutil.process_iter():
        try:
            if (
                process.pid != os.getpid()
                and process.environ().get(MARKER) == marker
                and is_running(process.pid)
            ):
                yield process
        except (psutil.Error, OSError):
            continue


def stop_marked(marker: str, patience: float = 1.0) -> int:
    """Stops every process that carries the marker, and its children: asks first, then kills until
    none is found. Returns how many there were at first. (A child shows no environment while it is
    being started, and is known by its parent alone.)"""
    found = _with_children(marked(marker))
    for process in found:
        _quietly(process.terminate)
    _still_running(found, patience)
    known, nothing = set(found), 0
    for _ in range(_HUNTS):
        known |= _with_children(marked(marker))
        stubborn = [
            process for process in known if process.is_running() and is_running(process.pid)
        ]
        nothing = 0 if stubborn else nothing + 1
        if nothing == _QUIET:
            break
        for process in stubborn:
            _quietly(process.kill)
        _still_running(stubborn, patience)
        time.sleep(_PAUSE)
    return len(found)


def is_running(pid: int) -> bool:
    """Whether the process runs: one that was killed may stay as a zombie, since Flower does not
    wait for it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class Stopped(KeyboardInterrupt):
    """A signal has asked to stop: SIGINT by Ctrl-C, SIGTERM by a batch system, SIGHUP by a terminal
    that was closed."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


@contextlib.contextmanager
def stoppable(*numbers: signal.Signals) -> Iterator[None]:
    """Within it the first of these signals raises Stopped, and those after it change nothing. A
    SIGHUP that is ignored stays so: `nohup` wants it."""
    heeded = [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]

    def stop(number: int, frame: FrameType | None) -> None:
        for one in heeded:
            signal.signal(one, signal.SIG_IGN)
        raise Stopped(signal.Signals(number))

    with handled(stop, *heeded):
        yield


@contextlib.contextmanager
def handled(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers, *numbers: signal.Signals
) -> Iterator[None]:
    """Within it these signals have this handler. In a thread that is not the main one signals do
    not arrive, and nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, earlier in before:
            signal.signal(number, earlier)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those that stop a command which has started something."""


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
            raise UserError(
                f"port {port} cannot be used ({error.strerror}); choose another, or leave port"
                " out for a free one"
            ) from None


def _with_children(processes: Iterable[psutil.Process]) -> set[psutil.Process]:
    """Those that run of the processes and of all that descend from them, this one left out."""
    found = set[psutil.Process]()
    for process in processes:
        if process not in found:
            found.add(process)
            with contextlib.suppress(psutil.Error):
                found.update(process.children(recursive=True))
    return {process for process in found if process.pid != os.getpid() and is_running(process.pid)}


def _still_running(processes: Iterable[psutil.Process], patience: float) -> list[psutil.Process]:
    """Waits until none runs, at most `patience` seconds; returns those that still do. (psutil's own
    wait takes an ended process for a running one until its parent has collected it: an orphan's may
    never.)"""
    deadline = time.monotonic() + patience
    while (
        left := [process for process in processes if is_running(process.pid)]
    ) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _quietly(action: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.Error):
        action()
