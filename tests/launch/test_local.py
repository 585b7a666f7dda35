"""The local engine's log on a disk that is full."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pfedlora_flwr.launch.local import _Log


def test_a_log_that_cannot_be_written_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    log = _Log(Path("/dev/full"), mode="w", encoding="utf-8")
    log.emit(logging.LogRecord("run", logging.INFO, "f.py", 1, "x" * 100_000, (), None))
    log.close()
    assert capsys.readouterr() == ("", "")
