"""`rounds.jsonl` and `clients.jsonl` as files: never held in memory as a whole, each line read once
by a watcher."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import from_json, sync_folder, whole_lines, write_atomically
from pfedlora_flwr.runs.rows import RoundRow, accuracy_of

RECENT = 5
"""Rounds that the time left is judged by."""


def read_rows(path: Path, needed: Set[str]) -> Iterator[Any]:
    """The rows of a file; a last one that was cut off is left out; of a file that is not there,
    none.

    Raises UserError for any other line that is none, or lacks one of the `needed` fields.
    """
    if not path.exists():
        return
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                row = from_json(line)
                if lacks := needed - set(row if isinstance(row, dict) else ()):
                    raise ValueError(f"it lacks {', '.join(sorted(lacks))}")
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return  # cut off as it was written
                advice = "restore it, or make the run again with overwrite=true"
                raise UserError(f"{path} is damaged at line {number} ({error}); {advice}") from None
            yield row


def append_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Adds lines that stay when the power fails: the checkpoint that follows them does."""
    new = not path.exists()
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
        stream.flush()
        os.fsync(stream.fileno())
    if new:
        sync_folder(path.parent)


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Replaces the file by these, which may be read from it as they are written."""
    write_atomically(path, ((json.dumps(row) + "\n").encode() for row in rows))


@dataclass(frozen=True)
class SoFar:
    """What the rounds' lines come to: how many there are, the last one's round and accuracy (None
    before any evaluation), the bytes of all, up and down, and the seconds of the last five after
    round 0."""

    lines: int = 0
    round: int = 0
    accuracy: float | None = None
    bytes: int = 0
    recent: tuple[float, ...] = ()

    def after(self, row: RoundRow) -> SoFar:
        """With one more line."""
        return SoFar(
            self.lines + 1,
            row["round"],
            accuracy_of(row),
            self.bytes + row["bytes_up"] + row["bytes_down"],
            (*self.recent, row["seconds"])[-RECENT:] if row["round"] else self.recent,
        )


def seconds_left(so_far: SoFar, total: int) -> float | None:
    """Seconds for the rounds up to `total` at the mean of the last five; None before the first one
    is done."""
    return (total - so_far.round) * fmean(so_far.recent) if so_far.recent else None


class Tail:
    """A file of lines that grows; each line is read once.

    begin: called before the first line, and again before that of another file in this one's place,
    as a resumed run puts there. take: is handed each row; what it cannot use counts as damaged."""

    def __init__(self, path: Path, begin: Callable[[], None], take: Callable[[Any], None]) -> None:
        self._path = path
        self._begin = begin
        self._take = take
        self._inode = self._read = 0
        self._last = b""

    def look(self) -> None:
        """Takes up what has been appended since the last look, except for a line that is still
        being written and what follows a damaged one: the next resume says so."""
        with suppress(FileNotFoundError), self._path.open("rb") as stream:
            inode = os.fstat(stream.fileno()).st_ino
            if inode != self._inode or not self._goes_on(stream):
                self._inode, self._read, self._last = inode, 0, b""
                self._begin()
            stream.seek(self._read)
            for line in whole_lines(stream):
                try:
                    self._take(from_json(line))
                except (ValueError, KeyError, TypeError):
                    break
                self._read, self._last = self._read + len(line), line

    def _goes_on(self, stream: BinaryIO) -> bool:
        """Whether the line that was read last still stands there: a file that took this one's place
        may have its inode."""
        stream.seek(self._read - len(self._last))
        return stream.read(len(self._last)) == self._last


class Watched:
    """The rounds' lines of a run that goes on."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path, self._begin, self._take)
        self._so_far = SoFar()

    def look(self) -> SoFar:
        """With what has been appended since the last look."""
        self._tail.look()
        return self._so_far

    def _begin(self) -> None:
        self._so_far = SoFar()

    def _take(self, row: RoundRow) -> None:
        self._so_far = self._so_far.after(row)
