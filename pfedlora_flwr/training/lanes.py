"""Lanes: calls that one process carries out side by side, as the visits of a round's clients.

Each lane is a thread, and a baton goes round: only who has it runs. A lane hands it on between the
steps of its training (`turn`) and takes the next call when its own has ended. So calls interleave,
and no two run at the same moment: nothing of a call's computation differs from that in one lane. On
a GPU, where steps are queued and not awaited, what lanes have queued on their streams does run at
the same time."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, Generic, TypeVar

import torch

from pfedlora_flwr import rng
from pfedlora_flwr.errors.one_line import process_settings, put_settings
from pfedlora_flwr.training.device import memory_share

logger = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")
_AUTO = 10
"""More lanes are not tried by themselves."""
_BESIDE = 256 * 2**20
"""Bytes of a lane that PyTorch does not count: a graph, and the libraries' workspaces."""
_HERE = threading.local()


def turn() -> None:
    """Hands the baton on, and returns when it is back; without lanes at once."""
    if (lane := getattr(_HERE, "lane", None)) is not None:
        lane.turn()


def worker() -> str:
    """What trains here one client at a time, by name: the process, or one of its lanes."""
    lane = getattr(_HERE, "lane", None)
    return f"{os.getpid()}{lane.name if lane else ''}"


def await_gpu(device: torch.device) -> None:
    """The other lanes go on until what this one has queued is done; without lanes nothing waits."""
    lane = getattr(_HERE, "lane", None)
    if device.type == "cuda" and lane is not None:
        queued = torch.cuda.current_stream(device).record_event()
        while lane.others and not queued.query():
            lane.turn()


def fitting(free: int, took: int) -> int:
    """The lanes that `free` bytes hold beside the one whose call took `took`: calls may differ, so
    each is to have twice as much."""
    return min(_AUTO, 1 + max(0, free) // (2 * (took + _BESIDE)))


class Lanes:
    """count: how many; None: on a GPU as many as its free memory holds by what the first call took,
    and one on a CPU. device: where they train."""

    def __init__(self, count: int | None, device: torch.device) -> None:
        self._device = device
        self._count = 1 if count is None and device.type == "cpu" else count
        # kept: the libraries have a workspace for each stream
        self._streams = [
            torch.cuda.Stream(device) if device.type == "cuda" else None
            for _ in range(self._count or _AUTO)
        ]

    def each(self, do: Callable[[T], R], items: Sequence[T]) -> Generator[tuple[int, R]]:
        """What `do` makes of each item, as it is done, with its place. Raises what `do` raises.

        When the iterator is closed, calls that have begun end at their next turn."""
        placed, alone = deque(enumerate(items)), self._count == 1 or len(items) < 2
        while placed and (alone or self._count is None):
            place, item = placed.popleft()
            yield place, (do(item) if self._count else self._measured(do, item))
        if placed:
            streams = self._streams[: self._count][: len(placed)]
            yield from _Round(do, placed).run(streams, self._device)

    def _measured(self, do: Callable[[T], R], item: T) -> R:
        """A call by itself, after which the number of lanes is known if it took memory."""
        cuda, device = torch.cuda, self._device
        cuda.reset_peak_memory_stats(device)
        before = cuda.memory_allocated(device)
        made = do(item)
        free, whole = cuda.mem_get_info(device)
        held = cuda.memory_allocated(device)
        unused = cuda.memory_reserved(device) - held
        room = min(free + unused, int(whole * memory_share()) - held)
        if took := cuda.max_memory_allocated(device) - before:
            self._count = fitting(room, took)
            logger.info("lanes: %d, by a first client that took %d MB", self._count, took >> 20)
        return made


class _Stopped(BaseException):
    """The calls that have begun are not wanted any more."""


class _Round(Generic[T, R]):
    """The calls that are made together.

    waiting, done: those that no lane has taken yet, and those that have ended. ring: the lanes that
    have something to do, the next one first."""

    def __init__(self, do: Callable[[T], R], waiting: deque[tuple[int, T]]) -> None:
        self.do, self.waiting = do, waiting
        self.done = deque[tuple[int, Future[R]]]()
        self.ring = deque[_Lane]()
        self.back = threading.Semaphore(0)
        self.stopping = False

    def run(
        self, streams: Sequence[torch.cuda.Stream | None], device: torch.device
    ) -> Generator[tuple[int, R]]:
        """What the calls return. The caller has the baton whenever one has ended."""
        lanes = [_Lane(self, f"-{n}" if n else "", stream) for n, stream in enumerate(streams)]
        self.ring.extend(lanes)
        mine = _globals()
        try:
            for lane in lanes:
                lane.start()
            while self.ring:
                mine = _globals()
                self.ring[0].go.release()
                self.back.acquire()
                _put(mine)
                while self.done:
                    place, future = self.done.popleft()
                    yield place, future.result()
        finally:
            self.stopping = True
            # first the one that runs; then the last one, or the libraries' handles change lanes
            for lane in (*self.ring, *reversed(lanes)):
                if lane.ident is not None:
                    lane.go.release()
                    lane.join()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            _put(mine)


class _Lane(threading.Thread):
    """stream: where it queues its work; None on a CPU."""

    def __init__(self, of: _Round[Any, Any], name: str, stream: torch.cuda.Stream | None) -> None:
        super().__init__(name=name, daemon=True)
        self._of, self._stream = of, stream
        self._context, self._before = copy_context(), _globals()
        self.go = threading.Semaphore(0)

    @property
    def others(self) -> bool:
        """Whether other lanes have something to do."""
        return len(self._of.ring) > 1

    def run(self) -> None:
        _HERE.lane = self
        try:
            self._wait(self._before)
            rng.hold_new()
            self._context.run(self._work)
        except _Stopped:
            pass
        finally:
            self._of.back.release()

    def _work(self) -> None:
        of = self._of
        while of.waiting:
            place, item = of.waiting.popleft()
            future = Future[Any]()
            try:
                with torch.cuda.stream(self._stream):
                    try:
                        made = of.do(item)
                    finally:  # what it frees another lane may take
                        if self._stream:
                            self._stream.synchronize()
                future.set_result(made)
            except _Stopped:
                raise
            except BaseException as error:
                future.set_exception(error)
            of.done.append((place, future))
            of.ring.rotate(-1)
            self._hand(of.back)
        of.ring.remove(self)
        self._hand(of.back)

    def turn(self) -> None:
        """Hands the baton to the next lane, if there is one."""
        if self._of.stopping:
            raise _Stopped
        if self.others:
            self._of.ring.rotate(-1)
            self._hand(self._of.ring[0].go)

    def _hand(self, to: threading.Semaphore) -> None:
        mine = _globals()
        to.release()
        self._wait(mine)

    def _wait(self, mine: _Globals) -> None:
        """For the baton; then what the process has is as this lane left it."""
        self.go.acquire()
        _put(mine)
        if self._of.stopping:
            raise _Stopped


_Globals = tuple[rng.Held, list[Any]]
"""What a process has once, and each lane for itself: the global generators, and settings."""


def _globals() -> _Globals:
    return rng.held(), process_settings()


def _put(mine: _Globals) -> None:
    rng.hold(mine[0])
    put_settings(mine[1])
