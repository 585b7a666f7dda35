"""A node's warm worker: it has imported the client, and forks for each message that the processes
hand over which Flower starts (`federation/warm.py`); one visit at a time.

    python -m pfedlora_flwr.launch.node_worker FILE SOCKET PARENT SECONDS

FILE: the socket's name. SOCKET: its descriptor. PARENT: the process with which the worker ends,
which starts the apps of the SuperNode. SECONDS: for which it waits for a next message."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from flwr.clientapp import ClientApp

from pfedlora_flwr import client_app
from pfedlora_flwr.federation import census, client, warm

_HELLO, _PATIENCE = 2**16, 10.0
"""Bytes of a process's first word, and seconds in which it comes."""
_PR_SET_PDEATHSIG = 1
_OOM, _RATHER = Path("/proc/self/oom_score_adj"), "500"
"""Where memory is short, Linux kills the visit rather than the worker."""
IMPORTED = (census, client)
"""What a visit would import beside the ClientApp."""


def main(file: Path, listener: socket.socket, parent: int, seconds: int) -> None:
    """Answers until nothing comes for so long, the parent ends, or a process comes that has other
    code. That one is answered as those are that still wait: they start a new one."""
    app, files = client_app.here(), _files()
    signal.signal(signal.SIGTERM, lambda *_: _stop(file))
    gc.collect()
    gc.freeze()  # what is not touched stays shared with every visit
    with _Ends(parent) as ends:
        while True:
            ready = ends.wait(listener, seconds)
            if ends.is_over or not ready:
                _leave(file, listener)
                return
            line, _ = listener.accept()
            with line:
                told, outputs = _told(line)
                if not told:
                    continue
                if told["package"] != warm.PACKAGE or _files(files) != files:
                    _leave(file, listener, line)
                    return
                child = os.fork()
                if not child:
                    listener.close()
                    _visit(line, told, outputs, app)
                for output in outputs:
                    os.close(output)
                ends.await_visit(child, line)


def _stop(file: Path) -> NoReturn:
    """As systemd ends a unit's processes: whoever comes next starts a worker without a warning."""
    file.unlink(missing_ok=True)
    os._exit(0)


def _leave(file: Path, listener: socket.socket, *waiting: socket.socket) -> None:
    """Turns away who waits; who comes after finds no socket."""
    file.unlink(missing_ok=True)
    listener.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            waiting = (*waiting, listener.accept()[0])
    listener.close()
    for line in waiting:
        with line, contextlib.suppress(OSError):
            line.sendall(warm.OTHER)


class _Ends:
    """What a worker waits for, beside messages."""

    def __init__(self, parent: int) -> None:
        self._parent = os.pidfd_open(parent)
        self.is_over = False

    def __enter__(self) -> _Ends:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._parent)

    def wait(self, listener: socket.socket, seconds: int) -> bool:
        """Whether something happens in so many seconds: a process knocks, or the parent ends."""
        return bool(self._poll({listener.fileno(): select.POLLIN}, seconds * 1000))

    def await_visit(self, child: int, line: socket.socket) -> None:
        """Waits for the visit, which ends with the process that asked for it, as with the
        parent."""
        opened = os.pidfd_open(child)
        found = self._poll({opened: select.POLLIN, line.fileno(): select.POLLRDHUP})
        os.close(opened)
        if opened not in found:
            os.kill(child, signal.SIGKILL)
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            print(f"visit {child} ended with {code}", file=sys.stderr, flush=True)

    def _poll(self, wanted: dict[int, int], patience: int | None = None) -> set[int]:
        asked = select.poll()
        for opened, what in (wanted | {self._parent: select.POLLIN}).items():
            asked.register(opened, what)
        found = {opened for opened, _ in asked.poll(patience)}
        self.is_over = self._parent in found
        return found


def _told(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What a process says first, and where it prints; nothing of one that is another user's, or
    gone."""
    line.settimeout(_PATIENCE)
    try:
        if not warm.is_same_user(line):
            print("another user knocked", file=sys.stderr, flush=True)
            return {}, []
        blob, outputs, _, _ = socket.recv_fds(line, _HELLO, 2)
    except OSError:
        return {}, []
    line.settimeout(None)
    return (json.loads(blob), outputs) if blob else ({}, [])


def _visit(
    line: socket.socket, told: dict[str, Any], outputs: list[int], app: ClientApp
) -> NoReturn:
    """The forked process, from its beginning to its end."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            _OOM.write_text(_RATHER)
        for output, own in zip(outputs, (1, 2), strict=True):
            os.dup2(output, own)
            os.close(output)
        sys.path[:], sys.argv[0] = told["path"], told["command"]  # by which permissions go
        np.random.seed()  # the one generator that a fork would repeat
        line.sendall(warm.BEGINS)
        with line.makefile("rwb") as stream:
            warm.serve(stream, app)
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _files(among: dict[str, tuple[int, int] | None] | None = None) -> dict[str, Any]:
    """When each file was written that was imported, and its size; None of one that is gone."""
    if among is None:
        found = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
        among = dict.fromkeys(name for name in found if name)
    return {name: _stamp(name) for name in among}


def _stamp(name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


if __name__ == "__main__":
    opened, parent, seconds = map(int, sys.argv[2:])
    main(Path(sys.argv[1]), socket.socket(fileno=opened), parent, seconds)
