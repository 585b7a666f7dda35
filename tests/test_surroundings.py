"""What surrounds a command: outputs, variables, proxies, servers that are down."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr import client_app
from pfedlora_flwr.commands.console import Flags
from pfedlora_flwr.config.files import find_conf
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.errors.log_lines import cause_line
from pfedlora_flwr.federation import wire
from pfedlora_flwr.federation.clients import WaitingLog
from pfedlora_flwr.federation.flower_compat import be_task
from pfedlora_flwr.launch.flower import environment
from pfedlora_flwr.launch.remote import _state
from pfedlora_flwr.launch.simulation import _stops
from pfedlora_flwr.observers.observer import Observer, Observers
from tests.conftest import ROOT, Call

SMALL = "--engine local -o dataset=synthetic:60 -o clients=2 -o partition.kind=iid -o rounds=1"
RUN = f"run {SMALL} -o models=tests.methods.narrow:Narrow -o output=run"


def command(words: str, where: Path, **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pfedlora_flwr.cli", *words.split()],
        cwd=where,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_an_output_that_lacks_a_character_gets_its_code(tmp_path: Path) -> None:
    with command(RUN, tmp_path, PYTHONIOENCODING="ascii", FORCE_COLOR="1") as done:
        said = done.communicate(timeout=100)[0]
    assert done.returncode == 0, said
    assert rb"round 1/1 \xb7" in said
    assert b"\x1b" not in said


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_an_output_that_is_closed_ends_the_command(tmp_path: Path) -> None:
    with command(RUN, tmp_path) as done:
        assert done.stdout
        done.stdout.readline()
        done.stdout.close()
        assert done.wait(100) != 0


def test_a_file_is_no_terminal_whatever_a_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert not Flags(file=io.StringIO()).is_terminal


@pytest.mark.parametrize(
    ("proxy", "kept"),
    [("socks5://192.0.2.1:1080", False), ("http://192.0.2.1:3128", True), ("192.0.2.1:3128", True)],
)
@pytest.mark.parametrize("name", ["ALL_PROXY", "https_proxy"])
def test_processes_that_speak_with_this_machine_start_whatever_the_proxy(
    name: str, proxy: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, proxy)
    monkeypatch.setenv("FORCE_COLOR", "1")
    found = environment(here=True)
    assert (name in found) == kept
    assert environment()[name] == proxy
    assert "127.0.0.1" in found["no_proxy"]
    assert "FORCE_COLOR" not in found


def test_the_first_of_a_chain_of_causes_is_the_reason() -> None:
    link = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    log = link.join(
        ["x\nException: the node timed out.", "RuntimeError: crashed.", "OSError: ends"]
    )
    assert cause_line(log) == "Exception: the node timed out."
    assert cause_line("ValueError: one\nKeyError: two") == "KeyError: two"


def test_an_observer_whose_server_is_down_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfedlora_flwr.observers.observer._PATIENCE", 0.05)
    asked = []

    class Down(Observer):
        def round(self, row: Any) -> None:
            asked.append(row["round"])
            time.sleep(0.1)
            raise ConnectionError("refused")

    observers = Observers({"tracker": Down()})
    for number in range(3):
        observers.round({"round": number})  # type: ignore[typeddict-item]
    assert asked == [0]
    assert "refused" in observers.failed["tracker"]


def test_a_run_that_flower_calls_completed_is() -> None:
    assert _state("finished:completed", []) == ("completed", None)
    assert _state("finished:failed", [])[0] == "killed"


def test_a_runs_folder_in_the_place_of_a_configuration_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match=f"a run's directory: .*resume=true and output={tmp_path}"):
        find_conf(str(tmp_path))


def test_handlers_beside_those_of_app_of_are_refused_in_words() -> None:
    app = client_app.app_of(client_app.config_of)
    for handler in (app.query, app.train, app.evaluate):
        with pytest.raises(UserError, match=r"takes no handlers.*app_of\(read, first="):
            handler("hello")


def test_a_client_of_flowers_own_is_named() -> None:
    from flwr.app import Error, Message, RecordDict

    be_task(1, 1)
    asked = Message(RecordDict(), 1, "train")
    error = Error(2, "ClientAppException: Invalid message type: get_properties")
    with pytest.raises(wire.Failed, match="its ClientApp is not one of app_of"):
        wire.answered(Message(error, reply_to=asked))


def test_nodes_that_are_turned_away_are_counted_while_others_are_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "pfedlora_flwr")
    waiting = WaitingLog(0, 3, 300.0)
    waiting.look(1, 2)
    waiting._say("")
    assert "1 of 3 nodes are ready, 2 turned away, which are asked again; waiting" in caplog.text


def test_a_debugger_in_own_code_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_stops.py").write_text("def f():\n    breakpoint()\n")
    (tmp_path / "own_goes.py").write_text("# breakpoint()\n")
    assert [_stops(name) for name in ("own_stops", "own_goes", "own_nowhere")] == [
        True,
        False,
        False,
    ]


def test_two_arrays_are_a_dataset_whose_classes_are_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = "import numpy as np\ndef data():\n    return np.eye(4), np.arange(4) % 2\n"
    (tmp_path / "own_pair.py").write_text(text + "def four():\n    return 1, 2, 3, 4\n")
    assert datasets.load("own_pair:data", Reading()).class_names == ("0", "1")
    with pytest.raises(UserError, match=r"returned tuple of 4, expected \(inputs, labels\), \(in"):
        datasets.load("own_pair:four", Reading())


@pytest.mark.slow
def test_a_client_of_the_run_is_told_to_be_left_out(pfedlora: Call, tmp_path: Path) -> None:
    assert pfedlora(*RUN.split(), "--quiet")[0] == 0
    words = "adapt run --client 0 -o dataset=csv:new.csv --output n"
    assert "client 0 was in the run; leave client out" in pfedlora(*words.split())[2]
    told = json.loads((tmp_path / "run" / "server" / "hashes.json").read_text())
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in told.values())
