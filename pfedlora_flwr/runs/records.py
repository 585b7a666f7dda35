"""Reads a run's `result.json` and the lines of its two tables; damaged files are refused by
name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import file_sha256, from_json, stamp_of
from pfedlora_flwr.runs.checkpoint import Checkpoints
from pfedlora_flwr.runs.lines import read_rows
from pfedlora_flwr.runs.rows import Result, Status

_MEASURES = ("rounds", "accuracy", "per_client", "communication", "flops", "seconds")
"""What a completed run's result has had in every version of its format."""
_OF_EVERY_LINE = {"round"}
_OF_A_ROUND = _OF_EVERY_LINE | {"accuracy", "validation_accuracy", "evaluated", "admitted"}
_OF_A_VISIT = _OF_EVERY_LINE | {"client", "status"}


def read_result(path: Path, format: int, hashes: Path | None = None) -> Result | None:
    """The result, or None if there is none yet. Raises UserError for one that is damaged or of
    another format. hashes: the file with what its SHA-256 was."""
    advice = "remove it; resume=true creates it again"
    try:
        held = path.read_bytes()
        found = from_json(held)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a result ({error}); {advice}") from None
    if (
        not isinstance(found, dict)
        or found.get("status") not in get_args(Status)
        or "error" not in found
    ):
        raise UserError(f"{path} is not the result of a run; {advice}")
    if found.get("format", format) != format:
        raise UserError(
            f"{path} has format {found['format']}, and this version reads {format}: another"
            " version made this run"
        )
    if found["status"] == "completed":
        lacks = [name for name in _MEASURES if found.get(name) is None]
    else:
        lacks = []
    if lacks:
        raise UserError(f"{path} lacks {', '.join(lacks)}; {advice}")
    known = _hashes(hashes if found["status"] == "completed" else None)
    if known.get(path.name, was := hashlib.sha256(held).hexdigest()) != was:
        raise UserError(f"{path} is not as the run wrote it: its checksum differs; {advice}")
    return found  # type: ignore[return-value]


def check_told(path: Path, last: int, result: Result, hashes: Path | None = None) -> None:
    """Raises UserError unless the lines of a completed run, whose last is of round `last`, are
    all, and as they were written."""
    if last != result["rounds"]:
        raise UserError(
            f"{path}: its rounds.jsonl does not reach round {result['rounds']}, as result.json"
            " does; restore it"
        )
    for name, was in _hashes(hashes).items():
        file = path / name
        if name.endswith(".jsonl") and was != (file.exists() and file_sha256(stamp_of(file))):
            raise UserError(f"{file} is not as the run wrote it: its checksum differs; restore it")


def _hashes(path: Path | None) -> dict[str, object]:
    """SHA-256 by a file's name; empty where there are none."""
    if not (path and path.exists()):
        return {}
    if not isinstance(found := read_json(path), dict):
        raise UserError(f"{path} is damaged; remove it: then no checksum is compared")
    return found


def read_json(path: Path) -> Any:
    """What a file that is only there to be watched holds, or None."""
    try:
        return from_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def read_rounds(path: Path) -> Iterator[Any]:
    """The lines of the rounds; a last one that was cut off is left out. Raises UserError for any
    other that is none."""
    return read_rows(path, _OF_A_ROUND)


def read_visits(path: Path) -> Iterator[Any]:
    """The same of the clients' visits."""
    return read_rows(path, _OF_A_VISIT)


def check_whole(
    checkpoints: Checkpoints, rounds: list[Any], visits: Iterable[Any], folder: Path, after: int
) -> None:
    """Raises UserError unless the tables reach as far as the last checkpoint, and there is one
    where there are rounds. after: the round behind which the run's own go on.

    A round's lines are written before its checkpoint, so that at most one round of theirs has none.
    """
    done, advice = checkpoints.rounds()[-1:], "restore it, or start again with overwrite=true"
    if not done:
        if len(rounds) > 1:
            raise UserError(
                f"{checkpoints.folder} has no checkpoint of the {len(rounds)} rounds in"
                f" rounds.jsonl; {advice}"
            )
        return
    if done == [after] and after:
        return
    for name, rows, last in (
        ("rounds.jsonl", rounds, done[0]),
        (
            "clients.jsonl",
            visits,
            max(
                (row["round"] for row in rounds if row["admitted"] and row["round"] <= done[0]),
                default=0,
            ),
        ),
    ):
        reached = max((row["round"] for row in rows), default=0)
        if reached < last or not rounds:
            raise UserError(
                f"{folder / name} ends at round {reached}, and {last} rounds are done; {advice}"
            )
