"""MLflow and Weights & Biases, written without a server and read back: `make trackers-test`."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr.observers.mlflow import MLflow
from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import Call, run_locally
from tests.test_resume import KEYS

pytestmark = pytest.mark.trackers
_BLOCK, _HEADER = 32768, 7
"""Of the log that W&B writes: LevelDB's format."""


@pytest.fixture(autouse=True)
def _no_settings_of_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)


def trained(output: Path, observers: str) -> Any:
    """A run of two rounds, resumed for a third."""
    keys = KEYS | {"observers": observers}
    assert run_locally(output, keys | {"rounds": 2}).code == 0
    done = run_locally(output, keys | {"rounds": 3, "resume": True})
    assert done.code == 0, done.stderr
    assert "observers" not in done.result, done.result["observers"]
    return done


def test_mlflow_has_keys_rounds_result_and_report_in_one_run(
    tmp_path: Path, pfedlora: Call
) -> None:
    done = trained(tmp_path / "run", "mlflow")
    tracking = importlib.import_module("mlflow.tracking")
    client = tracking.MlflowClient(f"sqlite:///{done.output / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("pfedlora")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["method"] == "pfedlora"
    history = client.get_metric_history(run.info.run_id, "accuracy/test")
    rows = done.rows("rounds.jsonl")
    assert [(m.step, m.value) for m in history] == [(r["round"], r["accuracy"]) for r in rows]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["result.json"]
    code, _, err = pfedlora("report", str(done.output))
    assert (code, "warning" in err) == (0, False), err
    there = {file.path for file in client.list_artifacts(run.info.run_id, "report")}
    assert {"report/report.md", "report/report.html", "report/runs.csv"} <= there


def test_mlflow_goes_on_with_a_run_that_was_moved(tmp_path: Path) -> None:
    """In other processes, as MLflow remembers places; from a path with an apostrophe."""
    old, new = tmp_path / "it's here", tmp_path / "moved"
    keys = KEYS | {"observers": "mlflow"}
    assert run_locally(old, keys | {"rounds": 2}).code == 0
    old.rename(new)
    start = "from pfedlora_flwr.cli import main; main()"
    again = ["run", "--engine", "local", "--resume", "-o", "rounds=3", "-o"]
    for words in ([*again, f"output={new}"], ["report", str(new)]):
        done = subprocess.run(
            [sys.executable, "-c", start, *words], capture_output=True, text=True, check=False
        )
        assert (done.returncode, "observer" in done.stderr) == (0, False), done.stderr
    tracking = importlib.import_module("mlflow.tracking")
    client = tracking.MlflowClient(f"sqlite:///{new / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("pfedlora")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.artifact_uri.startswith((new / "mlflow").as_uri())
    history = client.get_metric_history(run.info.run_id, "seconds/round")
    assert [metric.step for metric in history] == [0, 1, 2, 3]
    assert {path.name for path in (new / "mlflow").glob("*/artifacts/*")} == {
        "result.json",
        "report",
    }
    assert not old.exists()


def test_mlflow_says_where_there_is_no_run_of_it(tmp_path: Path, pfedlora: Call) -> None:
    output = tmp_path / "it's"
    observer = MLflow()
    assert run_locally(output, KEYS | {"observers": "mlflow", "rounds": 1}).code == 0
    observer._connect(output)
    known = observer._known(output)
    observer._client.delete_run(known)
    _, _, err = pfedlora("report", str(output))
    assert f"observer mlflow has not got the report: MLflow has no run of {output}; set" in err


def test_mlflow_logs_a_round_once_where_nothing_had_been_evaluated(tmp_path: Path) -> None:
    """A run that was stopped before its first evaluation, and resumed."""
    keys = KEYS | {"evaluate-initial": False, "rounds": 4}
    assert run_locally(tmp_path / "run", keys).code == 0
    RunDirectory(tmp_path / "run").rewind(2)
    observer = MLflow()
    for resume in (False, True):
        observer.begin({"output": str(tmp_path / "run"), "resume": resume})
    history = observer._client.get_metric_history(observer._id, "seconds/round")
    assert [metric.step for metric in history] == [1, 2]


def test_wandb_has_keys_rounds_result_and_report_of_one_run(tmp_path: Path, pfedlora: Call) -> None:
    done = trained(tmp_path / "run", "wandb")
    code, _, err = pfedlora("report", str(done.output))
    assert (code, "warning" in err) == (0, False), err
    files = sorted((done.output / "wandb").glob("offline-run-*/*.wandb"))
    assert len({file.name for file in files}) == 1  # one id, so one run where they are synced
    records = [record for file in files for record in records_of(file)]
    keys = {item.key for r in records if r.HasField("run") for item in r.run.config.update}
    assert {"method", "clients"} <= keys
    said = {
        "/".join([i.key, *i.nested_key]).strip("/"): i.value_json
        for r in records
        if r.HasField("summary")
        for i in r.summary.update
    }
    assert '"completed"' in said.get("result/status", said.get("result", "")), said
    [artefact] = [r.artifact for r in records if r.HasField("artifact")]
    assert artefact.type == "report"
    assert "report.html" in {entry.path for entry in artefact.manifest.contents}
    logged: dict[int, float] = {}
    for record in records:
        if record.HasField("history"):
            items = {
                (i.key or "/".join(i.nested_key)): float(i.value_json)
                for i in record.history.item
                if not i.key.startswith("_") or i.key == "_step"
            }
            if "accuracy/test" in items:
                logged[record.history.step.num] = items["accuracy/test"]
    assert logged == {row["round"]: row["accuracy"] for row in done.rows("rounds.jsonl")}


def test_a_tracker_that_fails_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    done = run_locally(tmp_path / "run", KEYS | {"observers": "mlflow", "rounds": 1})
    assert done.code == 0
    assert "127.0.0.1" in done.result["observers"]["mlflow"]


def records_of(file: Path) -> Iterator[Any]:
    """W&B's records, by its own messages."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    content, at, part = file.read_bytes(), _HEADER, b""  # its own header comes first
    while at + _HEADER <= len(content):
        if _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        length, sort = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        part += content[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if sort in (1, 4):  # whole, or a last piece
            record = messages.Record()
            record.ParseFromString(part)
            part = b""
            yield record
