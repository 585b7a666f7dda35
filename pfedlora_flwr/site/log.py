"""A site's own log of what left it, and what it refused: lines of JSON that are only appended, each
with the hash of the line before, so that a line that was changed or taken out is seen."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from flwr.app import RecordDict

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.wire import size_of
from pfedlora_flwr.files import from_json
from pfedlora_flwr.site.policy import Policy

_DAY = 86400.0
_BLOCK = 2**16


class Log:
    """That of one state-path, `egress.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "egress.jsonl"

    def append(self, entry: Mapping[str, Any]) -> None:
        """On disk when it returns. Raises OSError, and leaves the log as it was: nothing may leave
        that is not in it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"), self.path.open("ab", buffering=0) as stream:
            end = stream.tell()
            line = {"time": round(time.time(), 3), **entry, "before": self._last()}
            line["hash"] = _hash(line)
            try:
                blob = json.dumps(line).encode() + b"\n"
                if stream.write(blob) != len(blob):  # what is left in a buffer would follow later
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(stream.fileno())
            except OSError:
                os.ftruncate(stream.fileno(), end)
                raise

    def lines(self) -> Iterator[dict[str, Any]]:
        """All lines, oldest first. Raises UserError at the first that is not as it was written."""
        if not self.path.exists():
            return
        before = ""
        with self.path.open(encoding="utf-8") as stream:
            for number, text in enumerate(stream, 1):
                try:
                    line = from_json(text)
                    whole = line["before"] == before and line["hash"] == _hash(line)
                except (ValueError, KeyError, TypeError):
                    whole = False
                if not whole:
                    raise UserError(
                        f"{self.path}: line {number} is not as it was written, or the one before it"
                        " is gone"
                    )
                before = line["hash"]
                yield line

    def left(self, run: int, token: str, policy: Policy, *, uploads: bool) -> int:
        """The bytes that have left for the run: for Flower's run of this number, and for those of
        this token, which a resumed one keeps. Raises UserError where it has had what it may: bytes,
        a place among the runs of 24 hours or, where it asks for one, uploads."""
        most, rounds, day = policy.bytes, policy.rounds, policy.runs_a_day
        if (most, rounds, day) == (None, None, None):
            return 0
        sent = size = 0
        recent = set[int]()
        for line in self.lines():
            if "refused" not in line:
                recent |= {line["run"]} if line["time"] > time.time() - _DAY else set()
                if line["run"] == run or (token and line.get("token") == token):
                    sent += bool(line["upload"])
                    size += line["bytes"]
        if most is not None and size >= most:
            raise UserError(f"bytes is {most} here, and {size} have left for this run")
        if rounds is not None and uploads and sent >= rounds:
            raise UserError(f"rounds is {rounds} here, and this run has had {sent} uploads")
        if day is not None and run not in recent and len(recent) >= day:
            raise UserError(f"runs-a-day is {day} here, and {len(recent)} runs were here today")
        return size

    def _last(self) -> str:
        """The hash of the last line; empty where there is none."""
        with self.path.open("rb") as stream:
            end, tail = stream.seek(0, os.SEEK_END), b""
            while end and tail.count(b"\n") < 2:
                end = max(0, end - _BLOCK)
                stream.seek(end)
                tail = stream.read()
        lines = tail.splitlines()
        try:
            return str(from_json(lines[-1])["hash"]) if lines else ""
        except (ValueError, KeyError, TypeError):
            raise OSError(0, f"{self.path} is damaged") from None


def shapes_of(content: RecordDict) -> dict[str, Any]:
    """What a message holds, without its values: arrays, fields, bytes and a hash."""
    kinds: tuple[Any, ...] = (content.config_records, content.metric_records)
    said = [item for kind in kinds for record in kind.values() for item in record.items()]
    arrays = [array for record in content.array_records.values() for array in record.values()]
    digest = hashlib.sha256()
    for name, value in (*said, *((array.dtype, array.data) for array in arrays)):
        digest.update(name.encode())
        for part in value if isinstance(value, list) else [value]:
            digest.update(part if isinstance(part, bytes) else repr(part).encode())
    return {
        "arrays": [f"{array.dtype or array.stype} {[*array.shape]}" for array in arrays],
        "fields": sorted({name for name, _ in said}),
        "bytes": size_of(content),
        "sha256": digest.hexdigest(),
    }


def _hash(line: Mapping[str, Any]) -> str:
    told = {name: value for name, value in line.items() if name != "hash"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
