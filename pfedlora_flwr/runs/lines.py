"""`rounds.jsonl` and `clients.jsonl` as files: long ones are never held whole, and what watches a run reads each line once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedlora_flwr.files import whole_lines, write_atomically
from pfedlora_flwr.runs.rows import RoundRow

RECENT = 5
"""Rounds that the time left is judged by."""


def read_rows(path: Path) -> Iterator[Any]:
    """The rows of a file, up to a line that was cut off; of a file that is not there, none."""
    if path.exists():
        with path.open("rb") as stream:
            for line in stream:
                try:
                    yield json.loads(line)
                except ValueError:
                    return


def append_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def keep_rows(path: Path, wanted: Callable[[Any], bool]) -> None:
    """Replaces the file by one of its wanted rows."""
    write_atomically(path, ((json.dumps(row) + "\n").encode() for row in read_rows(path) if wanted(row)))


@dataclass(frozen=True)
class SoFar:
    """What the rounds' lines come to: how many there are, the last one's round and accuracy, the bytes of all, up and down, and the
    seconds of the last five after round 0."""

    lines: int = 0
    round: int = 0
    accuracy: float = 0.0
    bytes: int = 0
    recent: tuple[float, ...] = ()

    def after(self, row: RoundRow) -> SoFar:
        """With one more line."""
        return SoFar(
            self.lines + 1,
            row["round"],
            row["accuracy"],
            self.bytes + row["bytes_up"] + row["bytes_down"],
            (*self.recent, row["seconds"])[-RECENT:] if row["round"] else self.recent,
        )


class Watched:
    """The rounds' lines of a run that goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._read = 0
        self._so_far = SoFar()

    def look(self) -> SoFar:
        """Takes up what has been appended since the last look, but for a line that is still being written.

        A resumed run puts another file in this one's place: that is read from its beginning.
        """
        with suppress(FileNotFoundError), self._path.open("rb") as stream:
            found = os.fstat(stream.fileno())
            if found.st_ino != self._inode or found.st_size < self._read:
                self._inode, self._read, self._so_far = found.st_ino, 0, SoFar()
            stream.seek(self._read)
            for line in whole_lines(stream):
                try:
                    self._so_far = self._so_far.after(json.loads(line))
                except ValueError:  # damaged: the next resume drops it
                    break
                self._read += len(line)
        return self._so_far
