"""A node's warm worker, as the process sees it that Flower starts for each message: it needs no
PyTorch, hands the message to the worker and gives its answer back.

The worker (`launch/node_worker.py`) has imported everything, and forks for each message. So a visit
finds what a process of its own would find: nothing that an earlier visit has read, changed or
imported."""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedRWPair
from pathlib import Path
from typing import Any

from filelock import FileLock
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import pfedlora_flwr
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation import flower_compat as flower
from pfedlora_flwr.federation.node_config import number_in

logger = logging.getLogger(__name__)
WARM, SECONDS = KEYS = ("warm", "warm-seconds")
"""The keys of a node-config."""
FOLDER = "worker"
"""In the `state-path`: the worker's socket, lock and log."""
BEGINS, OTHER = b"b", b"o"
"""The worker's first word: the visit begins; it has other code than is installed now, and ends."""
PACKAGE = str(Path(pfedlora_flwr.__file__).parent)
_COMMAND, _WORKER = "flwr-clientapp", "pfedlora_flwr.launch.node_worker"
_IDLE, _ATTEMPTS = 600, 2
_MOST = 2**31 - 1
"""Bytes of a message that Flower's encoding can read at once."""
_DIED = "the warm worker died (its log is in %s); a new one starts"
_ENDED = "the process of this visit ended before it answered, often because memory is short"
_LATE = "no answer while the message was valid (%g s): the visit in the warm worker is ended"


class VisitEnded(RuntimeError):
    """The process of a visit ended before it answered, or answers too late."""


def idle_seconds(node_config: Mapping[str, object]) -> int | None:
    """How long the worker waits for a next message; None: this node has none. Raises UserError."""
    warm = str(node_config.get(WARM, True)).lower()
    if warm not in ("true", "false"):
        raise UserError(f"{WARM} is {warm!r} in the node-config; allowed: true or false")
    seconds = number_in(node_config, SECONDS)
    return None if warm == "false" else _IDLE if seconds is None else seconds


def answered(message: Message, context: Context) -> Message | None:
    """The worker's reply, with the client's state in `context`; None: the message is to be answered
    in this process, since it is no real node's, or no worker takes it.

    Raises what the client raised, by its name and text, and VisitEnded. A message whose visit has
    begun is not handed over again: it may have spent privacy, which its account on disk counts."""
    config = context.node_config
    if not (sys.platform == "linux" and Path(sys.argv[0]).stem.replace("_", "-") == _COMMAND):
        return None
    try:
        seconds = idle_seconds(config)
    except UserError:  # the gate says so
        return None
    if seconds is None or "state-path" not in config:
        return None
    if len(told := flower.encoded(message)) > _MOST:
        logger.warning("this process answers the message: it has more than %d bytes", _MOST)
        return None
    folder = Path(str(config["state-path"])).expanduser() / FOLDER
    for _ in range(_ATTEMPTS):
        try:
            line = _connected(folder, seconds)
        except OSError as error:
            logger.warning("no warm worker: %s", error.strerror or error)
            return None
        with line:
            line.settimeout(message.metadata.ttl)
            try:
                said = _first_word(line)
                if said == BEGINS:
                    return _visited(line, told, context)
            except TimeoutError:
                raise VisitEnded(_LATE % message.metadata.ttl) from None
        if said != OTHER:
            logger.warning(_DIED, folder)
    logger.warning("no warm worker takes the message: this process answers it")
    return None


def serve(stream: BufferedRWPair, app: ClientApp) -> None:
    """The visit, in the worker's child: reads the message, and writes what `app` answers."""
    task, told, before = _receive(stream, 3)
    flower.be_node_task(*json.loads(task))
    context, reply, failure = flower.decoded_context(before), b"", b""
    try:
        reply = flower.encoded(app(flower.decoded(told), context))
        if len(reply) > _MOST:
            reply = b""
            raise UserError(f"the answer has more than {_MOST} bytes: set {WARM}=false")
    except Exception as error:
        import traceback

        kind = type(error)
        failure = json.dumps(
            [kind.__module__, kind.__qualname__, str(error), traceback.format_exc()]
        ).encode()
    _send(stream, failure, reply, flower.encoded_context(context))


def is_same_user(line: socket.socket) -> bool:
    """Whether the other end is a process of this process's user."""
    held = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", held)[1] == os.getuid()


def _connected(folder: Path, seconds: int) -> socket.socket:
    """A line to the worker, which starts where there is none. Raises OSError."""
    folder.mkdir(0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError, ConnectionRefusedError):
        return _connect(folder)
    with FileLock(folder / "lock"):
        with suppress(FileNotFoundError):
            try:
                return _connect(folder)
            except ConnectionRefusedError:  # one that ends as it should takes its socket away
                logger.warning(_DIED, folder)
        _start(folder, seconds)
        return _connect(folder)


@contextmanager
def _address(folder: Path) -> Iterator[str]:
    """The socket's, which may be no longer than about a hundred characters."""
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{opened}/socket"
    finally:
        os.close(opened)


def _connect(folder: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    try:
        with _address(folder) as address:
            line.connect(address)
        if not is_same_user(line):
            raise PermissionError(f"{folder} has a worker of another user")
    except BaseException:
        line.close()
        raise
    return line


def _start(folder: Path, seconds: int) -> None:
    """Starts a worker in a session of its own. It listens before it has imported anything."""
    file = folder / "socket"
    file.unlink(missing_ok=True)
    with (
        socket.socket(socket.AF_UNIX) as listener,
        _address(folder) as address,
        (folder / "log").open("wb") as log,
    ):
        listener.bind(address)
        file.chmod(0o600)
        listener.listen()
        listener.set_inheritable(True)
        words = (listener.fileno(), os.getppid(), seconds)
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", _WORKER, str(file.absolute()), *map(str, words)],
            os.environ | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
            ],
            setsid=True,
        )


def _first_word(line: socket.socket) -> bytes:
    """What the worker says to this process's code; empty: it is dead. Waits for its turn."""
    told = {"package": PACKAGE, "path": sys.path, "command": sys.argv[0]}
    try:
        # what the visit prints goes where this process prints
        socket.send_fds(line, [json.dumps(told).encode()], [1, 2])
        return line.recv(1)
    except ConnectionError:
        return b""


def _visited(line: socket.socket, told: bytes, context: Context) -> Message:
    try:
        with line.makefile("rwb") as stream:
            task = json.dumps(flower.this_task()).encode()
            _send(stream, task, told, flower.encoded_context(context))
            failure, reply, after = _receive(stream, 3)
    except (EOFError, ConnectionError):
        raise VisitEnded(_ENDED) from None
    context.state = flower.decoded_context(after).state
    if failure:
        raise _raised(*json.loads(failure))
    return flower.decoded(reply)


def _raised(module: str, name: str, text: str, trace: str) -> Exception:
    """An exception that Flower tells as it would tell the client's own."""
    kind: Any = type(name, (Exception,), {"__module__": module, "__qualname__": name})
    error: Exception = kind(text)
    error.add_note(trace)
    return error


def _send(stream: BufferedRWPair, *blobs: bytes) -> None:
    for blob in blobs:
        stream.write(struct.pack(">Q", len(blob)))
        stream.write(blob)
    stream.flush()


def _receive(stream: BufferedRWPair, count: int) -> list[bytes]:
    """So many blobs. Raises EOFError where they end before."""
    return [_exactly(stream, struct.unpack(">Q", _exactly(stream, 8))[0]) for _ in range(count)]


def _exactly(stream: BufferedRWPair, size: int) -> bytes:
    blob = stream.read(size)
    if len(blob) < size:
        raise EOFError
    return blob
