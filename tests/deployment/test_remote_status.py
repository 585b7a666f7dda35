"""`pfedlora status --superlink`: what can be known of a run from a host that has not its
directory."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr.launch.flower import tool
from tests.conftest import keys_in
from tests.deployment.paced import GATES
from tests.deployment.processes import Federation, wait

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(1200)]
KEYS = keys_in(
    "clients=2 rounds=2 dataset=synthetic:60 partition.kind=iid models=cnn5 evaluate-"
    "initial=false method=tests.deployment.paced:Paced"
)


def status(federation: Federation, *words: str) -> tuple[int, Any]:
    done = subprocess.run(
        [tool("pfedlora"), "status", "--superlink", "test", "--json", *words],
        env=federation.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def test_a_superlink_tells_how_a_run_stands(tmp_path: Path) -> None:
    gates = tmp_path / "gates"
    gates.mkdir()
    (gates / "close-training-0-2").touch()
    with Federation(tmp_path / "federation", **{GATES: str(gates)}) as federation:
        federation.start_superlink()
        code, said = status(federation)
        assert code == 2
        assert "the SuperLink 'test' knows no run of pfedlora-flwr; it has: none" in said
        for node in range(2):
            federation.start_node(node, partition_id=node, num_partitions=2)
        run = federation.submit(KEYS)
        wait((gates / "training-0-2").exists, run, patience=600)
        code, said = status(federation)
        assert (code, said["state"], said["round"], said["rounds"]) == (3, "running", 1, 2)
        assert said["run"] == str(federation.output)
        assert said["reason"].startswith("round 1/2")
        assert [node["status"] for node in said["nodes"]] == ["online", "online"]
        assert [client["round"] for client in said["per_client"].values()] == [1, 1]
        first = said["run_id"]

        [server] = federation.processes("serverapp")
        server.kill()
        assert run.wait(120) != 0
        code, said = status(federation)
        assert (code, said["state"], said["round"]) == (4, "killed", 1)
        assert said["seconds_left"] is None

        (gates / "close-training-0-2").unlink()
        assert federation.run(KEYS, "--resume") == 0, federation.log("submit")
        code, said = status(federation)
        assert (code, said["state"], said["round"], said["reason"]) == (0, "completed", 2, None)
        assert said["run_id"] != first
        assert status(federation, first)[0] == 4
        assert "pfedlora: status" not in federation.log("submit")
        assert "status {" not in federation.log("submit")
    code, said = status(federation)
    assert code == 2
    assert "nothing answers at" in said
