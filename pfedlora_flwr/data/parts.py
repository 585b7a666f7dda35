"""The parts of a site's own rows, and of a simulation's, kept on disk: a row that was trained on is
never tested."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pfedlora_flwr.data.arrays import DAMAGED
from pfedlora_flwr.data.partition import Partition
from pfedlora_flwr.data.source import Indices
from pfedlora_flwr.data.split import Split
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import write_atomically

FOLDER = "parts"
OF_RUN = Path("server", "parts.npz")
"""The file of a simulation's rows in its directory."""
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Parts:
    """Which rows have which part, of one seed: `file` has the hash of each row's inputs, so that a
    corrected label changes nothing, and its part. Of equal rows each has its own."""

    file: Path

    @classmethod
    def of(cls, state_path: Path, seed: int) -> Parts:
        """Those that a site keeps in its `state-path`."""
        return cls(state_path / FOLDER / f"seed-{seed}.npz")

    def known(self, hashes: Hashes) -> Indices:
        """The part of each of these rows [n]: 0 training, 1 validation, 2 test, -1 none yet. Raises
        UserError for a file that is damaged."""
        held, parts = self._held
        order = np.argsort(hashes, kind="stable")
        wanted = hashes[order]
        number = np.arange(len(wanted)) - np.searchsorted(wanted, wanted)  # among its equals
        first, end = (np.searchsorted(held, wanted, side) for side in ("left", "right"))
        there = end > first
        found = np.full(len(hashes), -1, np.int64)
        found[order[there]] = parts[np.minimum(first + number, end - 1)[there]]
        return found

    def keep(self, hashes: Hashes, split: Split) -> None:
        """Adds all rows, as they are split; those that the site no longer has are kept, too. Raises
        UserError where they cannot be written."""
        held, parts = self._held
        mine = np.zeros(len(hashes), np.uint8)
        mine[split.validation], mine[split.test] = 1, 2
        gone = ~np.isin(held, hashes)
        every = np.concatenate([held[gone], hashes])
        of = np.concatenate([parts[gone], mine])
        order = np.argsort(every, kind="stable")
        if np.array_equal(every[order], held) and np.array_equal(of[order], parts):
            return
        text = io.BytesIO()
        np.savez(text, hashes=every[order], parts=of[order])
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.file, text.getvalue())
        except OSError as error:
            raise UserError(f"state-path {self.file.parent}: {error.strerror}") from None

    def keep_all(self, hashes: Hashes, partition: Partition) -> None:
        """The same of the rows that clients have together, among all of a dataset."""
        of_clients = zip(*(split.parts for split in partition.clients), strict=True)
        parts = [np.concatenate(part) for part in of_clients]
        ends = np.cumsum([len(rows) for rows in parts])
        split = Split(*np.split(np.arange(ends[-1]), ends[:-1]))
        self.keep(hashes[np.concatenate(parts)], split)

    @cached_property
    def _held(self) -> tuple[Hashes, npt.NDArray[np.uint8]]:
        """All hashes, sorted, and their parts, as they were on disk at the first look."""
        if not self.file.exists():
            return np.empty(0, np.uint64), np.empty(0, np.uint8)
        try:
            with np.load(self.file, allow_pickle=False) as held:
                return held["hashes"], held["parts"]
        except (*DAMAGED, KeyError):
            told = "by which rows that were trained on are never tested"
            raise UserError(f"{self.file} is damaged, {told}: restore it") from None
