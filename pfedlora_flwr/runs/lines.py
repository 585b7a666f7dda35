"""`rounds.jsonl` and `clients.jsonl` as files: never held in memory as a whole, each line read once
by a watcher."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import whole_lines, write_atomically
from pfedlora_flwr.runs.rows import RoundRow

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
                row = json.loads(line)
                if lacks := needed - set(row if isinstance(row, dict) else ()):
                    raise ValueError(f"it lacks {', '.join(sorted(lacks))}")
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return  # cut off as it was written
                advice = "restore it, or make the run again with --overwrite"
                raise UserError(f"{path} is damaged at line {number} ({error}); {advice}") from None
            yield row


def append_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Replaces the file by these, which may be read from it as they are written."""
    write_atomically(path, ((json.dumps(row) + "\n").encode() for row in rows))


@dataclass(frozen=True)
class SoFar:
    """What the rounds' lines come to: how many there are, the last one's round and accuracy, the
    bytes of all, up and down, and the seconds of the last five after round 0."""

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
        """Takes up what has been appended since the last look, but for a line that is still being
        written.

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
                except (ValueError, KeyError, TypeError):  # damaged: the next resume says so
                    break
                self._read += len(line)
        return self._so_far
