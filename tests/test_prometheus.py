"""The text file for Prometheus, read by Prometheus' own parser: `make trackers-test`. And its
alerts, which name what is written."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from pfedlora_flwr.observers import prometheus
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.lines import append_rows
from tests.conftest import ROOT, run_locally
from tests.test_resume import KEYS

RULES = ROOT / "docs" / "alerts.yml"
NAMES = {
    *(f"pfedlora_{prometheus._NAMES.get(field, field)}" for field in prometheus._OF_RUN),
    *(f"pfedlora_{name}" for name, _ in prometheus._OF_CLIENT.values()),
    *(f"pfedlora_{name}_total" for name, _ in prometheus._COUNTED.values()),
    "pfedlora_run_state",
    "pfedlora_written_timestamp_seconds",
}


def samples(file: Path) -> dict[str, dict[tuple[str, ...], float]]:
    """By name and labels (without the run's), as Prometheus reads them."""
    parser = importlib.import_module("prometheus_client.parser")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in parser.text_string_to_metric_families(file.read_text()):
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("run") == file.parent.name
            found.setdefault(sample.name, {})[tuple(labels.values())] = sample.value
    return found


@pytest.mark.trackers
def test_a_run_writes_its_status_and_a_resumed_one_goes_on(tmp_path: Path) -> None:
    keys = KEYS | {"observers": "prometheus"}
    began = time.time()
    assert run_locally(tmp_path / "run", keys | {"rounds": 2}).code == 0
    done = run_locally(tmp_path / "run", keys | {"rounds": 3, "resume": True})
    assert done.code == 0, done.stderr
    assert "observers" not in done.result, done.result["observers"]
    found = samples(done.output / "metrics.prom")
    assert found.keys() == NAMES - {"pfedlora_seconds_left"}
    assert found["pfedlora_run_state"] == {
        ("running",): 0.0,
        ("completed",): 1.0,
        ("failed",): 0.0,
        ("stopped",): 0.0,
        ("diverged",): 0.0,
    }
    row = done.rows("rounds.jsonl")[-1]
    assert found["pfedlora_round"] == {(): 3.0}
    assert found["pfedlora_accuracy"] == {(): row["accuracy"]}
    visits = done.rows("clients.jsonl")
    last = {(str(row["client"]),): float(row["round"]) for row in visits}
    never = {(str(k),): 0.0 for k in range(4)}
    assert found["pfedlora_client_round"] == never | last
    assert set(found["pfedlora_client_failures_total"].values()) == {0.0}
    assert all(began < seen for seen in found["pfedlora_client_seen_timestamp_seconds"].values())


@pytest.mark.trackers
def test_failures_and_the_time_left_of_a_running_run(tmp_path: Path) -> None:
    done = run_locally(tmp_path / "run", KEYS | {"rounds": 2})
    run = RunDirectory(done.output)
    run.write_config(run.run_config().__class__(run.experiment().replace(rounds=9)))
    observer = prometheus.Prometheus()
    observer.begin(run.run_config().flat() | {"output": str(done.output)})
    assert samples(run.metrics)["pfedlora_seconds_left"][()] > 0
    rows: list[Any] = [
        {"round": 3, "client": 0, "status": "failed", "reason": "refused: too large"},
        {"round": 3, "client": 1, "status": "failed", "reason": "no answer"},
    ]
    append_rows(done.output / "clients.jsonl", rows)
    observer.round(run.rounds()[-1])
    found = samples(run.metrics)
    assert found["pfedlora_run_state"]["running",] == 1
    assert found["pfedlora_client_refused_updates_total"]["0",] == 1
    assert found["pfedlora_client_refused_updates_total"]["1",] == 0
    assert found["pfedlora_client_failures_in_a_row"]["1",] == 1


@pytest.mark.trackers
def test_a_client_has_its_counters_before_it_fails(tmp_path: Path) -> None:
    """An increase from 0 is one; a series that begins with 1 has none."""
    done = run_locally(tmp_path / "run", KEYS | {"rounds": 1, "participation": 0.5})
    run = RunDirectory(done.output)
    observer = prometheus.Prometheus()
    observer.begin(run.run_config().flat() | {"output": str(done.output)})
    found, clients = samples(run.metrics), {(str(k),) for k in range(4)}
    for name in ("failures_total", "refused_updates_total", "failures_in_a_row", "round"):
        assert found[f"pfedlora_client_{name}"].keys() == clients
    assert found["pfedlora_client_seen_timestamp_seconds"].keys() < clients


@pytest.mark.trackers
def test_alerts_fire_when_they_say_and_not_of_runs_that_have_ended() -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool, of Prometheus (Debian's package `prometheus`), is not installed")
    cases = [promtool, "test", "rules", str(ROOT / "tests" / "alerts.yml")]
    done = subprocess.run(cases, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_about_what_is_written() -> None:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    assert len(group["rules"]) >= 5
    for rule in group["rules"]:
        named = set(re.findall(r"pfedlora_\w+", rule["expr"]))
        assert named, rule
        assert named <= NAMES, rule
        assert rule["annotations"]["summary"]
    states = set(re.findall(r'state=~?"([^"]+)"', RULES.read_text()))
    assert {name for text in states for name in text.split("|")} <= set(prometheus._STATES)
