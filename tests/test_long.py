"""Long runs: whoever watches one reads each of its lines once, whatever is being written, cut off
or rewritten at the moment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from pfedlora_flwr import Run
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.launch import submission
from pfedlora_flwr.launch.flower import LaunchError
from pfedlora_flwr.launch.submission import Submission
from pfedlora_flwr.observers.scalars import scalars
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.lines import SoFar
from tests.conftest import keys_in, run_locally


def line(round: int, sent: int = 10) -> str:
    row = {
        "round": round,
        "accuracy": round / 10,
        "validation_accuracy": 0.5,
        "evaluated": True,
        "admitted": [],
    }
    return json.dumps(row | {"bytes_up": sent, "bytes_down": sent, "seconds": float(round)}) + "\n"


@pytest.mark.slow
def test_each_rounds_line_is_read_once_to_be_shown_and_once_for_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, read = json.loads, list[int]()

    def spy(text: Any, **how: Any) -> Any:
        found = loads(text, **how)
        if isinstance(found, dict) and "server_seconds" in found:
            read.append(found["round"])
        return found

    monkeypatch.setattr(json, "loads", spy)
    keys = keys_in("clients=2 rounds=4 partition.kind=iid dataset=synthetic:40 method=fd")
    assert run_locally(tmp_path / "run", keys | {"models": "tests.methods.narrow:Narrow"}).code == 0
    assert sorted(read) == sorted([*range(5), *range(5)])


def test_before_any_evaluation_no_accuracy_is_told(tmp_path: Path) -> None:
    """Its line has 0 for none; a watcher, a tracker and the log name none."""
    keys = keys_in(
        "clients=2 rounds=2 partition.kind=iid dataset=synthetic:40 method=standalone "
        "models=tests.methods.narrow:Narrow evaluate-initial=false evaluate-every=2"
    )
    assert run_locally(tmp_path / "run", keys).code == 0
    before, after = RunDirectory(tmp_path / "run").rounds()
    assert (before["accuracy"], before["evaluated"], after["evaluated"]) == (0.0, 0, 2)
    assert SoFar().after(before).accuracy is None
    assert SoFar().after(after).accuracy == after["accuracy"]
    assert not [tag for tag in scalars(before) if tag.startswith("accuracy")]
    assert scalars(after)["accuracy/test"] == after["accuracy"]
    log = (tmp_path / "run" / "logs" / "run.log").read_text()
    assert "round 1/2 · not evaluated yet · 2 of 2 clients" in log
    assert f"round 2/2 · accuracy {after['accuracy']:.4f} · " in log
    file = tmp_path / "run" / "result.json"
    result = json.loads(file.read_text())
    result |= {"status": "stopped", "accuracy": result["accuracy"] | {"evaluated": 0}}
    file.write_text(json.dumps(result))
    assert repr(Run(tmp_path / "run")) == f"<Run {tmp_path / 'run'}: stopped>"


def test_a_line_that_is_being_written_waits_for_its_end(tmp_path: Path) -> None:
    file, rounds = tmp_path / "rounds.jsonl", RunDirectory(tmp_path).watched()
    assert rounds.look() == SoFar()
    file.write_text(line(0) + line(1)[:20])
    assert rounds.look() == SoFar(lines=1, round=0, accuracy=0.0, bytes=20)
    file.write_text(line(0) + line(1) + line(2))
    assert (
        rounds.look()
        == rounds.look()
        == SoFar(lines=3, round=2, accuracy=0.2, bytes=60, recent=(1.0, 2.0))
    )


def test_what_a_resumed_run_takes_back_counts_no_more(tmp_path: Path) -> None:
    file, run = tmp_path / "rounds.jsonl", RunDirectory(tmp_path)
    file.write_text("".join(map(line, range(9))) + line(9)[:20])
    rounds = run.watched()
    assert rounds.look().recent == (4.0, 5.0, 6.0, 7.0, 8.0)
    run.rewind(7)
    with file.open("a") as stream:  # as long as what it had, before it is looked at again
        stream.write(line(8, sent=15) + line(9))
    assert rounds.look() == SoFar(
        lines=10, round=9, accuracy=0.9, bytes=210, recent=(5.0, 6.0, 7.0, 8.0, 9.0)
    )
    run.rewind(-1)
    assert rounds.look() == SoFar()


@pytest.mark.parametrize("damage", [b"\0\xff\n", b"[1]\n", b"{}\n"])
def test_a_damaged_line_hides_what_is_behind_it_from_who_watches_and_is_refused_by_a_resume(
    tmp_path: Path, damage: bytes
) -> None:
    run = RunDirectory(tmp_path)
    (tmp_path / "rounds.jsonl").write_bytes(line(0).encode() + damage + line(2).encode())
    assert run.watched().look().lines == 1
    with pytest.raises(UserError, match="is damaged at line 2"):
        run.rewind(2)


@pytest.mark.slow
def test_a_log_that_begins_anew_is_told_on_from_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower sends it from its beginning after each break of the connection; the first break is in
    the middle of a line."""
    monkeypatch.setattr(submission, "_PAUSE", 0.0)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    connection = '[superlink.there]\naddress = "127.0.0.1:1"\ninsecure = true\n'
    (tmp_path / "config.toml").write_text(connection)
    sent = iter(
        [
            "pfedlora: one\nINFO: hum\npfedlora: tw",
            "pfedlora: one\nINFO: hum\npfedlora: two\npfedlora: result {}\n",
        ]
    )

    class Flwr:
        def stream(self, run_id: str, log: BinaryIO) -> subprocess.Popen[bytes]:
            return subprocess.Popen(["printf", "%s", next(sent, "pfedlora: one\n")], stdout=log)

        def status(self, run_id: str) -> str:
            if len(told) < 2:
                raise LaunchError("the connection is broken")
            return "finished:completed"

    run, told = Submission("there", tmp_path), list[str]()
    monkeypatch.setattr(run, "_flwr", Flwr())
    run.follow(told.append)
    assert told == ["one", "two"]
