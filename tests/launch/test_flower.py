"""Flower's commands: found where pip puts them, called one way, and what they say cut down to the
line that says why."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

import pfedlora_flwr
from pfedlora_flwr.config import run_config
from pfedlora_flwr.launch import flower
from pfedlora_flwr.launch.flower import QUIET, FlwrCommand, LaunchError, last_line, tool, write_app
from tests.conftest import ROOT


def executable(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter without scripts beside it, as Debian's or that of `pip install --user`."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "usr" / "bin" / "python3"))
    monkeypatch.setattr(
        flower.sysconfig, "get_path", lambda name, scheme="": str(tmp_path / (scheme or "system"))
    )
    monkeypatch.setattr(flower.site, "ENABLE_USER_SITE", True)
    monkeypatch.setenv("PATH", str(tmp_path / "local"))
    return tmp_path


def test_a_command_is_taken_from_beside_the_interpreter_first(bare: Path) -> None:
    user = flower.sysconfig.get_preferred_scheme("user")
    places = [bare / folder / "flwr" for folder in ("local", user, "system", "usr/bin")]
    for place in places:  # each comes before those that are there already
        assert tool(str(executable(place).name)) == str(place)


def test_a_command_that_is_nowhere_is_one_line(bare: Path) -> None:
    with pytest.raises(
        LaunchError,
        match=r"the command `flwr` is neither beside .*python3 nor on the PATH; pip install",
    ) as raised:
        tool("flwr")
    assert "\n" not in str(raised.value)


def test_our_processes_find_flowers_commands_too(bare: Path) -> None:
    assert flower.environment()["PATH"].split(":")[0] == str(bare / "usr" / "bin")
    assert flower.environment(FLWR_HOME="here")["FLWR_HOME"] == "here"


@pytest.fixture
def flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FlwrCommand:
    """A `flwr` that does what `tmp_path/flwr` says."""
    monkeypatch.setattr(flower, "tool", lambda name: str(tmp_path / name))
    return FlwrCommand("there", flower.environment(), tmp_path / "flwr.log")


def test_what_flwr_answers_is_read(flwr: FlwrCommand, tmp_path: Path) -> None:
    executable(
        tmp_path / "flwr",
        """echo '{"success": true, "run-id": "7", "runs": [{"status": "finished:completed"}]}'""",
    )
    assert flwr.run(tmp_path) == "7"
    assert flwr.status("7") == "finished:completed"
    flwr.stop("7")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            r"""printf '%s' '{"success": false, "error-message": "Trying...\nError: no such connection"}'""",
            "Error: no such connection",
        ),
        ("echo 'ValueError: broken' >&2; exit 1", "ValueError: broken"),
        ("echo '│ no JSON │'", "no JSON"),
    ],
)
def test_what_flwr_refuses_is_one_line_with_its_reason(
    flwr: FlwrCommand, tmp_path: Path, script: str, reason: str
) -> None:
    executable(tmp_path / "flwr", script)
    log = tmp_path / "flwr.log"
    for call, word in (
        (lambda: flwr.run(tmp_path), "run"),
        (lambda: flwr.status("7"), "list"),
        (lambda: flwr.stop("7"), "stop"),
    ):
        with pytest.raises(LaunchError) as raised:
            call()
        assert str(raised.value) == f"`flwr {word}` failed: {reason} (see {log})"
    assert reason in log.read_text()


def test_a_run_that_flower_does_not_know_is_one_line(flwr: FlwrCommand, tmp_path: Path) -> None:
    executable(tmp_path / "flwr", """echo '{"success": true, "runs": []}'""")
    with pytest.raises(LaunchError, match="Flower does not know run 7"):
        flwr.status("7")


def test_a_superlink_that_does_not_answer_is_one_line(
    flwr: FlwrCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(tmp_path / "flwr", "exec sleep 5")
    monkeypatch.setattr(flower, "_CALL", 0.2)
    with pytest.raises(
        LaunchError, match=r"`flwr stop`: the SuperLink 'there' did not answer within 0\.2 s"
    ):
        flwr.stop("7")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Traceback:\n  x\nValueError: no\nclosing down\n", "ValueError: no"),
        ("one\n\x1b[31mtwo\x1b[0m\n\n", "two"),
        ("│ flwr.Refused: not you │\n╰───╯\n", "flwr.Refused: not you"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_the_last_line_of_a_log_is_an_exceptions_first(
    tmp_path: Path, text: str, expected: str
) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    assert last_line(log) == f"{expected} (see {log})"


def test_a_log_that_says_nothing(tmp_path: Path) -> None:
    assert last_line(tmp_path / "nowhere") == f"nothing in {tmp_path / 'nowhere'}"


def test_the_app_is_pyprojects_with_the_experiments_keys(tmp_path: Path) -> None:
    config = run_config({"clients": 3, "output": '/a "quoted" place', "lr": 0.1})
    app = tomllib.loads(
        (write_app(tmp_path / "app", config) / "pyproject.toml").read_text(encoding="utf-8")
    )
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert app["project"]["name"] == ours["project"]["name"]
    assert app["project"]["version"] == pfedlora_flwr.__version__
    for part in ("publisher", "components"):
        assert app["tool"]["flwr"]["app"][part] == ours["tool"]["flwr"]["app"][part]
    assert run_config(app["tool"]["flwr"]["app"]["config"]) == config


def test_image_and_services_are_as_quiet_as_a_simulation() -> None:
    pages = [ROOT / "docs" / "deployment.md", ROOT / "docs" / "deployment" / "nodes.md"]
    blocks = [block for page in pages for block in page.read_text("utf-8").split("```")]
    units = {block for block in blocks if "[Unit]" in block}
    assert len(units) == 2
    for text in ((ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8"), *units):
        for name in (name for name in QUIET if name.startswith("FLWR_")):
            option = "--" + name.removeprefix("FLWR_").lower().replace("_", "-")
            assert f"{name}={QUIET[name]}" in text or option in text, name
