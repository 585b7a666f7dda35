"""A run's directory: what is taken up, replaced and cleared, whatever else lies in it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr.api.process import as_it_was
from pfedlora_flwr.config import run_config
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.files import absolute, write_atomically
from pfedlora_flwr.launch.execute import execute
from pfedlora_flwr.launch.processes import Stopped
from pfedlora_flwr.runs import lines
from pfedlora_flwr.runs.begin import Resume, continued, find
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.lines import Tail, append_rows
from pfedlora_flwr.runs.trained import clients_of
from pfedlora_flwr.server_app import _open
from tests.conftest import named_keys
from tests.report.made import make_run


def test_a_link_to_a_larger_disk_stays_and_its_folder_is_cleared(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 0.2)
    run, kept = RunDirectory(tmp_path / "run"), tmp_path / "larger"
    for name in ("uploads", "clients"):
        (kept / name / "round-000001").mkdir(parents=True)
        (kept / name / "a.safetensors").touch()
        (run.path / name).symlink_to(kept / name)
    run.drop_models()
    assert list((kept / "clients").iterdir()) == []
    (kept / "mlflow" / "other-run").mkdir(parents=True)
    (run.path / "mlflow").symlink_to(kept / "mlflow")
    find(run, overwriting(run)).claim()
    run.close()
    assert (kept / "mlflow" / "other-run").exists(), "several runs share it"
    assert list((kept / "uploads").iterdir()) == []
    assert run.uploads.folder.is_symlink()


def overwriting(run: RunDirectory, **keys: Any) -> RunConfig:
    flat = {"output": str(run.path), "overwrite": True, "dataset": "synthetic:60", "clients": 2}
    flat |= {"partition.kind": "iid"}
    return run_config(flat | named_keys(keys))


def test_files_that_systems_put_there_do_not_keep_a_run_from_being_replaced(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 0.2)
    run = RunDirectory(tmp_path / "run")
    for name in (".DS_Store", ".nfs0001", "mlflow.db-journal", ".result.json.7-ab.tmp"):
        (run.path / name).touch()
    find(run, overwriting(run)).check()
    (run.path / "thesis.tex").touch()
    with pytest.raises(UserError, match="not a run's directory"):
        find(run, overwriting(run)).check()


def test_what_ends_before_it_replaces_a_run_does_not_take_that_runs_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the SuperLink starts: nothing of the new run is there, all of the old one is."""
    make_run(tmp_path / "run", [0.1, 0.9], [0.9, 0.9], method="fedproto", dataset="synthetic:60")
    run = RunDirectory(tmp_path / "run")
    run.checkpoints.save(ServerState({}, round=1))

    class Engine:
        def __enter__(self) -> Engine:
            return self

        def __exit__(self, *error: object) -> None: ...

        def run(self, show: object) -> None:
            raise Stopped(signal.SIGINT)

        def save_log(self) -> None: ...

    monkeypatch.setattr("pfedlora_flwr.launch.execute._engine", lambda *_: Engine())
    new = overwriting(run, method="standalone")
    result = execute(new, lambda *_: None, lambda _: None, engine="local")
    assert (result["status"], result["method"]) == ("stopped", "standalone")
    assert result.keys().isdisjoint({"rounds", "accuracy", "privacy"})
    assert result["resumable"] is False
    assert run.experiment().method == "fedproto"
    assert run.checkpoints.paths()
    with pytest.raises(UserError, match="continue it with resume=true"):  # it is not lost
        find(run, new.executed(overwrite=False)).check()
    same = overwriting(run, method="fedproto", rounds=1)
    again = execute(same, lambda *_: None, lambda _: None, engine="local")
    assert again.keys().isdisjoint({"rounds", "accuracy", "privacy"})
    assert continued(same).execution.resume


def test_who_reads_a_run_changes_no_file_and_is_told_each_time_that_it_is_older(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_run(tmp_path / "run", [0.1, 0.2, 0.3], [0.2, 0.3], dataset="synthetic:60")
    run = RunDirectory(tmp_path / "run")
    for number in (1, 2):
        run.checkpoints.save(ServerState({}, number, {0: number, 1: 2 * (number - 1)}))
    older, newest = run.checkpoints.paths()

    def read() -> tuple[list[int], str]:
        caplog.clear()
        with as_it_was():
            found = clients_of(run.path)[0], clients_of(run.path)[0]
        assert found[0] == found[1]
        return found[0], caplog.text

    assert read() == ([0, 1], "")
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    for _ in range(2):
        clients, said = read()
        assert clients == [0]
        assert said.count("round-000002.checkpoint is damaged (its checksum differs)") == 1
        assert said.count("is read as of round 1, and 2 rounds are done") == 1
        assert run.checkpoints.paths() == [older, newest]
    newest.unlink()
    assert "is read as of round 1, and 2 rounds are done" in read()[1]
    run.result_file.unlink()
    assert read() == ([0], ""), "it may go on: a round's line comes before its checkpoint"
    newest.write_bytes(whole[:-1])
    taken = run.take_up(run.experiment())
    assert taken is not None
    assert taken.round == 1
    assert [path.name for path in run.server.glob("*02.*")] == ["round-000002.damaged"]


def test_a_line_is_on_disk_before_the_checkpoint_that_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[str]()
    monkeypatch.setattr(
        lines.os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}"))
    )
    file = tmp_path / "rounds.jsonl"
    append_rows(file, [{"round": 0}])
    assert synced == [str(file), str(tmp_path)]
    append_rows(file, [{"round": 1}])
    assert synced[2:] == [str(file)]


def test_a_file_that_took_anothers_place_and_inode_is_read_from_its_start(tmp_path: Path) -> None:
    file, seen = tmp_path / "rounds.jsonl", list[int]()
    tail = Tail(file, seen.clear, lambda row: seen.append(row["round"]))
    append_rows(file, [{"round": n} for n in range(4)])
    tail.look()
    with file.open("r+") as stream:  # as `ext4` gives an inode again
        stream.write('{"round": 10, "longer": true}\n' * 4)
    tail.look()
    assert seen == [10] * 4
    append_rows(file, [{"round": 5}])
    tail.look()
    assert seen == [10] * 4 + [5]


def test_two_containers_with_one_process_id_do_not_write_the_same_file_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = set[str]()
    replace = Path.replace

    def noted(self: Path, target: Path) -> Path:
        names.add(self.name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noted)
    for _ in range(2):
        write_atomically(tmp_path / "plan.json", b"{}")
    assert len(names) == 2
    assert all(Path(name).match(".*.tmp") for name in names)


def test_a_path_that_is_not_utf_8_is_one_line() -> None:
    with pytest.raises(UserError, match="cannot be used as a path"):
        absolute(os.fsdecode(b"runs/\xff"))


def test_the_server_of_a_simulation_does_not_extend_a_run_whose_models_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where `flwr run` begins it, without our launcher."""
    make_run(tmp_path / "run", 0.2)
    run = RunDirectory(tmp_path / "run")
    more = run.run_config().flat() | {"output": str(run.path), "resume": True, "rounds": 5}
    run.checkpoints.save(ServerState({}, round=1, versions={0: 1}))
    monkeypatch.setattr(Resume, "check", lambda _: None)
    with pytest.raises(UserError, match="does not hold the models of 1 client after round 1"):
        _open(run_config(more), simulated=True)
    assert run.experiment().rounds == 1
