"""`pfedlora status`: a run that goes on, was killed, failed, was stopped, or is completed."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from filelock import FileLock

from pfedlora_flwr.files import is_locked
from pfedlora_flwr.launch import flower, remote
from pfedlora_flwr.launch.superlink import Node
from pfedlora_flwr.observers.status_line import StatusLine
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.lines import append_rows
from pfedlora_flwr.runs.result import LINE, RESULT_LINE, STATUS_LINE, write_result
from pfedlora_flwr.runs.rows import Progress
from pfedlora_flwr.runs.status import (
    ClientStatus,
    NodeStatus,
    RunStatus,
    failing_first,
    find_status,
)
from tests.conftest import Call, Cli, key_words, keys_in, run_locally
from tests.deployment.paced import GATES
from tests.deployment.processes import wait
from tests.report.made import make_run

KEYS = keys_in(
    "clients=3 rounds=3 dataset=synthetic:60 partition.kind=iid models=tests.methods.narrow:Narrow"
)
WORDS = key_words(KEYS)


def fields(of: Any) -> set[str]:
    return set(get_type_hints(of)) - {"run_id", "nodes"}


@pytest.fixture
def paused(cli: Cli) -> Iterator[tuple[Cli, Path]]:
    """A run, in processes of its own, that stands in round 2 before client 1 has trained."""
    gates = cli.folder / "gates"
    gates.mkdir()
    (gates / "close-training-1-2").touch()
    cli.environment |= {GATES: str(gates)}
    words = [*WORDS, "-o", "method=tests.deployment.paced:Paced", "--engine", "local"]
    process = cli.start("run", *words)
    try:
        wait((gates / "training-1-2").exists, process)
        yield cli, cli.folder / "run"
    finally:
        process.kill()
        process.communicate(timeout=10)


@pytest.mark.slow
def test_a_run_is_running_then_killed_then_completed(
    paused: tuple[Cli, Path], pfedlora: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli, run = paused
    code, out, _ = pfedlora("status", str(run), "--json")
    status = json.loads(out)
    assert (code, status["state"], status["reason"]) == (3, "running", None)
    assert fields(RunStatus) == set(status)
    assert fields(ClientStatus) == set(status["per_client"]["0"])
    told = RunDirectory(run).doing()
    assert told is not None
    assert fields(Progress) == set(told)
    assert (told["pid"], told["host"]) == (
        next(p.pid for p in cli.processes()),
        os.uname().nodename,
    )
    assert {k: status[k] for k in ("round", "rounds", "clients", "failures", "refused")} == {
        "round": 1,
        "rounds": 3,
        "clients": 3,
        "failures": 0,
        "refused": 0,
    }
    assert (status["phase"], status["of"]) == ("training", 3)
    assert status["seconds_left"] > 0
    now = time.time()
    assert all(0 <= now - client["seen"] < 600 for client in status["per_client"].values())
    assert status["disk_used"] > 1000
    assert status["disk_free"] > 0
    code, out, _ = pfedlora("status", str(run))
    assert code == 3
    assert "1 of 3 rounds are over; training: " in out
    assert "round 1, " in out

    [server] = cli.processes()
    server.kill()
    # its threads may end after it, and hold its locks until then
    wait(lambda: find_status(RunDirectory(run))["state"] != "running", patience=20)
    code, out, _ = pfedlora("status", str(run), "--json")
    status = json.loads(out)
    assert (code, status["state"], status["seconds_left"]) == (4, "killed", None)
    assert status["reason"] == "its server is gone and left no result; resume=true continues it"

    (cli.folder / "gates" / "close-training-1-2").unlink()
    monkeypatch.setenv(GATES, str(cli.folder / "gates"))
    assert pfedlora("run", "-o", f"output={run}", "--resume", "--engine", "local")[0] == 0
    code, out, _ = pfedlora("status", str(run), "--json")
    status = json.loads(out)
    assert (code, status["state"], status["round"]) == (0, "completed", 3)
    assert {client["round"] for client in status["per_client"].values()} == {3}


@pytest.mark.slow
def test_a_run_that_failed_names_its_failing_client(pfedlora: Call, tmp_path: Path) -> None:
    keys = KEYS | {"method": "tests.failing:ClientRaises"}
    assert run_locally(tmp_path / "run", keys).code == 1
    code, out, _ = pfedlora("status", "run", "--json")
    status = json.loads(out)
    assert (code, status["state"], status["round"], status["failures"]) == (1, "failed", 0, 1)
    client = status["per_client"]["2"]
    assert (client["round"], client["in_a_row"], client["refused"]) == (0, 1, 0)
    assert client["seen"] is None, "of its evaluation before round 1 no update came"
    assert "the disk of client 2 is on fire" in client["reason"]
    assert "on fire" in status["reason"]


def failed(round: int, client: int, reason: str) -> dict[str, Any]:
    return {"round": round, "client": client, "status": "failed", "reason": reason}


@pytest.fixture
def made(tmp_path: Path) -> RunDirectory:
    """Two rounds of three clients: client 1 has failed twice in a row, client 2 once before."""
    make_run(tmp_path / "run", [0.1, 0.5, 0.7], [0.5, 0.6, 0.7])
    run = RunDirectory(tmp_path / "run")
    run.result_file.unlink()
    (tmp_path / "run" / "clients.jsonl").unlink(missing_ok=True)
    ok = [{"round": round, "client": 0, "status": "ok"} for round in (1, 2)]
    rows = [ok[0], failed(1, 1, "no answer"), failed(1, 2, "refused: its loss is no number")]
    rows += [ok[1], failed(2, 1, "refused: too large"), ok[1] | {"client": 2}]
    append_rows(tmp_path / "run" / "clients.jsonl", rows)
    (tmp_path / "run" / "server").mkdir(exist_ok=True)
    return run


def test_failures_are_counted_by_client(made: RunDirectory) -> None:
    found = find_status(made)
    assert (found["failures"], found["refused"]) == (3, 2)
    counted = {
        number: (c["round"], c["failures"], c["in_a_row"], c["refused"])
        for number, c in found["per_client"].items()
    }
    assert counted == {"0": (2, 0, 0, 0), "1": (0, 2, 2, 1), "2": (2, 1, 0, 1)}
    assert found["per_client"]["1"]["reason"] == "refused: too large"
    assert list(failing_first(found, 2)) == ["0", "1"]
    assert list(failing_first(found, 1)) == ["1"]


@pytest.mark.parametrize(("leaves", "seen"), [("3:1", ["0", "1", "2"]), ("2:1", ["0", "2"])])
def test_a_client_counts_until_it_has_left(
    made: RunDirectory, leaves: str, seen: list[str]
) -> None:
    text = made.config.read_text()
    assert "clients-left: ''" in text
    made.config.write_text(text.replace("clients-left: ''", f"clients-left: '{leaves}'"))
    found = find_status(made)
    assert [*found["per_client"]] == seen
    assert (found["clients"], found["failures"]) == ((3, 3) if "1" in seen else (2, 1))


def test_lines_of_a_resumed_run_replace_those_before(made: RunDirectory) -> None:
    standing = made.standing().look()
    assert standing.clients[1].failures == 2
    made.rewind(1)
    assert standing.look().clients[1].failures == 1
    assert standing.so_far.round == 1


def test_a_run_of_another_host_is_unknown(made: RunDirectory, pfedlora: Call) -> None:
    made.progress("training", 2, 1, 3)
    assert find_status(made)["state"] == "killed"
    file = made.path / "server" / "progress.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"host": "far-away"}))
    code, out, _ = pfedlora("status", str(made.path))
    assert code == 6
    assert "its server ran on far-away, and it left no result; ask there" in out
    with FileLock(made.lock_file):  # a folder that both hosts have, where locks are shared
        assert pfedlora("status", str(made.path))[0] == 3


def test_a_stopped_run_has_a_code_of_its_own(made: RunDirectory, pfedlora: Call) -> None:
    write_result(made, made.run_config(), "stopped", "stopped by the user", "user")
    code, out, _ = pfedlora("status", str(made.path))
    assert code == 5
    assert "stopped by the user" in out


def test_there_must_be_a_run(tmp_path: Path, pfedlora: Call) -> None:
    code, _, err = pfedlora("status", "nowhere")
    assert (code, err) == (2, f"error: {tmp_path}/nowhere holds no run\n")
    code, _, err = pfedlora("status")
    assert code == 2
    assert "status needs RUN, a run's directory, or --superlink CONNECTION" in err
    code, _, err = pfedlora("status", "--superlink", "nowhere")
    assert code == 2
    assert "--superlink is 'nowhere'" in err


def test_a_superlink_is_asked_for_what_the_server_logged(
    made: RunDirectory,
    pfedlora: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By a `flwr` that answers as Flower's does; tests/deployment asks a real SuperLink."""
    line = StatusLine()
    line.begin({"output": str(made.path)})
    line.round({"round": 2})  # type: ignore[typeddict-item]
    log = tmp_path / "log"
    log.write_text(f"INFO: started\n{capsys.readouterr().out}{LINE}round 2/2 · accuracy 0.7\n")
    runs = [
        {"run-id": "7", "fab-name": "pfedlora-flwr", "pending-at": "2026-01-02"},
        {"run-id": "6", "fab-name": "pfedlora-flwr", "pending-at": "2026-01-01"},
        {"run-id": "9", "fab-name": "another", "pending-at": "2026-01-03"},
    ]
    node = Node(11, "north", "online", "2026-01-02 03:04 UTC", "SHA256:x")
    tool, answer = tmp_path / "flwr", tmp_path / "runs.json"
    tool.write_text(f"#!/bin/sh\ncase $1 in list) cat {answer};; log) cat {log};; esac\n")
    tool.chmod(0o755)
    (tmp_path / "config.toml").write_text("[superlink.site]\n")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr(flower, "tool", lambda name: str(tool))
    monkeypatch.setattr(remote, "nodes_of", lambda connection: [node])

    def ask(flower_says: str, *words: str) -> tuple[int, Any]:
        told = {"success": True, "runs": [run | {"status": flower_says} for run in runs]}
        answer.write_text(json.dumps(told))
        code, out, err = pfedlora("status", "--superlink", "site", "--json", *words)
        return code, json.loads(out) if out else err

    code, status = ask("running")
    assert (code, status["state"], status["run_id"]) == (3, "running", "7")
    assert (status["reason"], status["run"]) == ("round 2/2 · accuracy 0.7", str(made.path))
    assert status["per_client"]["1"]["reason"] == "refused: too large"
    assert status["nodes"] == [dataclasses.asdict(node)]
    assert set(status) == set(get_type_hints(RunStatus))
    assert set(status["nodes"][0]) == set(get_type_hints(NodeStatus))
    code, status = ask("finished:failed")
    assert (code, status["state"], status["round"]) == (4, "killed", 2)
    assert ask("finished:stopped")[0] == 5
    assert ask("running", "6")[1]["run_id"] == "6"
    code, said = ask("running", "5")
    there = "7 (pfedlora-flwr), 6 (pfedlora-flwr), 9 (another)"
    told = f"error: the SuperLink 'site' knows no run 5; it has: {there}\n"
    assert (code, said) == (2, told)
    result = {"status": "completed", "error": None}
    log.write_text(log.read_text() + RESULT_LINE + json.dumps({"result": result}) + "\n")
    assert ask("finished:completed")[0] == 0
    log.write_text("INFO: started\n")
    code, status = ask("pending")
    assert (code, status["reason"], status["round"]) == (3, "Flower says pending", 0)
    code, out, _ = pfedlora("status", "--superlink", "site")
    assert (code, "the server has not begun" in out, "SHA256:x" in out) == (3, True, True)


@pytest.mark.parametrize(
    ("flower_says", "state"),
    [("running", "running"), ("finished:completed", "completed"), ("finished:failed", "completed")],
)
def test_a_result_counts_once_flower_says_that_the_run_is_over(
    flower_says: str, state: str
) -> None:
    told = RESULT_LINE + json.dumps({"result": {"status": "completed", "error": None}})
    said = [f"{LINE}node 4 is not a client of this run: its base is x", told, f"{LINE}round 1/20"]
    reason = "round 1/20" if state == "running" else None
    assert remote._state(flower_says, said) == (state, reason)


@pytest.mark.parametrize(
    ("damaged", "round"),
    [
        *(("{}", 0), ('{"result": {"status": "fine", "error": null}}', 0)),  # tell no round
        *(('{"result": {"sta', 2), ("[]", 2)),
    ],
)
def test_a_damaged_line_of_a_servers_log_is_none(damaged: str, round: int) -> None:
    said = [STATUS_LINE + json.dumps({"round": 2}), STATUS_LINE + damaged, RESULT_LINE + damaged]
    assert remote._state("running", said) == ("running", "Flower says running")
    assert remote._state("finished:completed", said) == ("killed", remote.LOST)
    assert remote._last(said)["round"] == round
    assert set(remote._last([STATUS_LINE + "{}"])) >= fields(RunStatus)


def test_a_look_at_a_lock_changes_nothing_and_needs_no_right_to_write(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    assert not is_locked(file)
    assert not file.exists()
    with FileLock(file):
        file.chmod(0o444)
        assert is_locked(file)
    assert not is_locked(file)
