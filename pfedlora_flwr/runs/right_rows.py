"""Which rows of its test part a client's model had right, evaluation by evaluation: a simulation
keeps it, for the uncertainty that test rows are. Real nodes tell nothing of single rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedlora_flwr.runs.lines import append_rows, read_rows

Integers = NDArray[np.int64]
MOST = 10_000
"""Rows of a test part: with more, what they leave open is less than a point."""


@dataclass(frozen=True)
class RightRows:
    """A client's test part, [n] each: the numbers of its samples in the dataset, their classes, and
    whether the model had them right."""

    rows: Integers
    classes: Integers
    right: NDArray[np.bool_]


def keep(
    file: Path,
    round: int,
    rows: NDArray[np.int64],
    classes: NDArray[np.int64],
    right: NDArray[np.bool_],
) -> None:
    """Adds an evaluation after `round` to the client's file."""
    if len(rows) > MOST:
        return
    line = {"round": round, "right": np.packbits(right).tobytes().hex()}
    head = [] if file.exists() else [{"rows": [*map(int, rows)], "classes": [*map(int, classes)]}]
    file.parent.mkdir(exist_ok=True)
    append_rows(file, [*head, line])


def read(file: Path, round: int) -> RightRows | None:
    """The client's last evaluation up to `round`, the later one of two after the same round; None
    where there is none."""
    head, *lines = [*read_rows(file, set())] or [{}]
    known: dict[int, Any] = {line["round"]: line for line in lines if line["round"] <= round}
    if not known:
        return None
    found = bytes.fromhex(known[max(known)]["right"])
    right = np.unpackbits(np.frombuffer(found, np.uint8), count=len(head["rows"]))
    return RightRows(np.array(head["rows"]), np.array(head["classes"]), right.astype(bool))
