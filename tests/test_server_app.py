"""The ServerApp: how a run ends."""

from __future__ import annotations

import errno
import json
import logging
from pathlib import Path
from traceback import format_exc
from types import SimpleNamespace

import httpx
import pytest
from flwr.superlink.grid import InMemoryGrid

from pfedlora_flwr import server_app
from pfedlora_flwr.config import run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.flower_compat import RunNotRunningException
from pfedlora_flwr.runs.directory import RunDirectory


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (RunNotRunningException(), "stopped", "stopped through Flower"),
        (
            httpx.ConnectError("refused"),
            "failed",
            "the SuperLink does not answer (refused); start it again, with resume=true",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "failed",
            "No space left on device: nothing that was written before is lost",
        ),
        (ValueError("a\nb"), "failed", "ValueError: a"),
        (UserError("so what"), "failed", "so what"),
    ],
)
def test_whatever_ends_a_run_leaves_a_result(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: str,
    reason: str,
) -> None:
    # it logs to this test's stderr, which goes with the test
    monkeypatch.setattr(logging.getLogger("pfedlora_flwr"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("flwr"), "filters", [])

    class Grid(InMemoryGrid):
        def __init__(self) -> None:
            pass

        def get_node_ids(self) -> list[int]:
            raise error

    keys = {"output": str(tmp_path / "run"), "dataset": "synthetic:300", "device": "cpu"}
    with pytest.raises(type(error)):
        server_app.main(Grid(), SimpleNamespace(run_config=keys))
    result = RunDirectory(tmp_path / "run").result()
    assert result is not None
    assert (result["status"], str(result["error"])[: len(reason)]) == (status, reason)
    told = json.loads(capsys.readouterr().out.partition("pfedlora: result ")[2])
    assert told == {"directory": str(tmp_path / "run"), "result": result}


def test_flower_run_is_told_of_keys_as_it_has_no_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("pfedlora_flwr"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("flwr"), "filters", [])
    (tmp_path / "config.yaml").write_text("method: pfedlora\n")
    wanted = "exists; continue it with resume=true, replace it with overwrite=true"
    grid = InMemoryGrid.__new__(InMemoryGrid)
    with pytest.raises(UserError, match=wanted):
        server_app.main(grid, SimpleNamespace(run_config={"output": str(tmp_path)}))
    assert wanted in capsys.readouterr().out
    config = run_config({"output": str(tmp_path), "dataset": "digits"})
    with pytest.raises(UserError, match=wanted), server_app.strategy_of(config):
        pytest.fail("it is another run's directory")


def test_nobodys_words_begin_a_line_of_our_log_as_ours_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = logging.getLogger("pfedlora_flwr")
    monkeypatch.setattr(package, "handlers", [])
    server_app._log_to_stderr()
    for end in ("\n", "\r", "\x0b", "\x85", "\u2028"):
        package.warning("Ray says: %s", f"x{end}pfedlora: result {{}}")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["pfedlora: Ray says: x", "  pfedlora: result {}"] * 5


@pytest.mark.parametrize(
    ("error", "traceback"), [(UserError("lr is -1.0"), False), (ValueError("a slip"), True)]
)
def test_in_flowers_log_our_line_comes_last_and_a_users_mistake_has_no_traceback(
    error: Exception, traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As Flower logs an app that failed: the exception, its text, and its own exit code."""
    log = logging.getLogger(f"flwr.of-a-test-{traceback}")
    log.addFilter(server_app.LineLast(error))
    with caplog.at_level(logging.ERROR):
        try:
            raise error
        except Exception as raised:
            log.error("%s raised an exception", "ServerApp", exc_info=raised)
            log.error(format_exc())
        log.error("Exit Code: 700\nAn unhandled exception occurred")
    assert ("Traceback (most recent call last)" in caplog.text) == traceback
    told = str(error) if not traceback else f"ValueError: {error}"
    assert caplog.text.splitlines()[-1].startswith(f"pfedlora failed: {told}")
