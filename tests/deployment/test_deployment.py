"""Real SuperLinks and SuperNodes reach the bits of a simulation, whatever the transport, the
isolation and where the data is."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaging.version import Version

from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.local import LocalData, Site
from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.launch.flower import tool
from pfedlora_flwr.launch.processes import free_port
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.provenance import told_versions
from pfedlora_flwr.runs.trained import load_trained
from scripts.certificates import make as make_certificates
from tests.conftest import keys_in
from tests.deployment.paced import GATES
from tests.deployment.processes import PATIENCE, Federation, wait
from tests.masked import pieces, secrets_of
from tests.plain import Plain, make

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]
KEYS = keys_in(
    "clients=3 rounds=2 batch-size=16 dataset=synthetic:300 partition.kind=iid evaluate-"
    "initial=false"
)
OLD_FLOWER = "flwr==1.39.0"
"""The last release whose SuperNode speaks gRPC."""


class OwnData(Plain):
    """A federation whose clients have data of their own."""

    def __init__(self, places: dict[int, str], keys: dict[str, Any]) -> None:
        super().__init__(keys)
        self.method = make(self.experiment, self.experiment.classes or 10)
        self.state = self.method.state_init(derive(self.experiment.seed, "state"))
        self.places = places

    def data(self, client: int) -> LocalData:
        return Site.find(self.experiment, client, {"dataset": self.places[client]}).load(
            torch.device("cpu")
        )


def sha256(plain: Plain, rounds: int) -> str:
    plain.train(rounds)
    return tensors_sha256(plain.state)


def test_three_authenticated_nodes_over_tls_reach_the_simulations_bits(tmp_path: Path) -> None:
    """Two have warm workers, one starts anew for each message. Beside them a node that is not
    registered and one that trusts another CA: both are turned away. A worker ends with its
    SuperNode, whether that is stopped or killed."""
    tls, foreign = tmp_path / "certificates", tmp_path / "foreign"
    make_certificates(tls, ["localhost", "127.0.0.1"], nodes=4, days=2, renew=False)
    make_certificates(foreign, ["127.0.0.1"], nodes=0, days=2, renew=False)
    with Federation(tmp_path / "federation", tls=tls) as federation:
        federation.start_superlink()
        for node in range(3):
            federation.flwr("supernode", "register", str(tls / f"node{node}.pub"))
            federation.start_node(node, partition_id=node, num_partitions=3, warm=node < 2)
        unregistered = federation.start_node(3, partition_id=0, num_partitions=3)
        deceived = federation.start_node(
            4, key="node0", ca=foreign / "ca.crt", partition_id=0, num_partitions=3
        )
        assert federation.run(KEYS) == 0, federation.log("submit")
        assert unregistered.wait(PATIENCE) != 0
        assert deceived.wait(PATIENCE) != 0
        assert len(federation.processes("node_worker")) == 2
        deployed, said = federation.result(), federation.log("submit")
        models = {
            path.parent.parent.parent.name
            for path in federation.folder.glob("state*/*/*/round-000002.safetensors")
        }
        assert models == {"state0", "state1", "state2"}
        assert not (federation.output / "clients").exists(), "a client's model left its node"
        # as `pfedlora predict` and `export` do on the node
        usable = load_trained(federation.folder / "state1", 1)
        federation.stop_node(0)
        federation.nodes[1].kill()
        federation.nodes[1].wait()
        wait(lambda: not federation.processes("node_worker"))
    assert "305" in federation.log("node3")
    assert "CERTIFICATE_VERIFY_FAILED" in federation.log("node4")
    assert "round 2/2" in said
    assert "mean test accuracy" in said
    simulated = Plain(KEYS)
    assert deployed["shared_sha256"] == sha256(simulated, 2)
    assert deployed["accuracy"]["final"] == pytest.approx(simulated.accuracy(), abs=1e-12)
    assert usable.sha256 == tensors_sha256(tensors_of(simulated.model(1)))
    assert usable.counts.accuracy("test") == deployed["per_client"]["1"]["accuracy"]
    lines = "".join(f"{k}:{tensors_sha256(tensors_of(simulated.model(k)))}\n" for k in range(3))
    assert deployed["models_sha256"] == hashlib.sha256(lines.encode()).hexdigest()


def test_three_nodes_sum_under_masks_and_one_that_restarts_spoils_its_round_alone(
    tmp_path: Path,
) -> None:
    """Node 0 is killed in training, before its masked upload is there, and started again as a
    service manager would. Of three clients none may be missing, so nothing is unmasked in that
    round, and the next one goes on.

    No single update is found by value in what the server's side keeps, nor in a copy of the
    SuperLink's database from the moment when the two other masked uploads had come. The same search
    finds there what travels in the clear, the download."""
    tls, gates = tmp_path / "certificates", tmp_path / "gates"
    make_certificates(tls, ["localhost", "127.0.0.1"], nodes=3, days=2, renew=False)
    gates.mkdir()
    (gates / "close-training-0-1").touch()
    keys = KEYS | {
        "max-failed-rounds": 2,
        "secagg.enabled": "true",
        "secagg.max-samples": 128,
        "method": "tests.deployment.paced:Paced",
    }
    with Federation(tmp_path / "federation", tls=tls, **{GATES: str(gates)}) as federation:
        federation.start_superlink()
        for node in range(3):
            federation.flwr("supernode", "register", str(tls / f"node{node}.pub"))
            federation.start_node(node, partition_id=node, num_partitions=3, secagg="required")
        run = federation.submit(keys)
        wait((gates / "training-0-1").exists, run)
        wait(lambda: (RunDirectory(federation.output).doing() or {}).get("done") == 2, run)
        midway = b"".join(p.read_bytes() for p in sorted(federation.folder.glob("superlink.db*")))
        federation.nodes[0].kill()
        federation.nodes[0].wait()
        (gates / "close-training-0-1").unlink()
        while run.poll() is None:
            # it is refused until the SuperLink has noticed that it was gone
            if federation.nodes[0].poll() is not None:
                federation.start_node(0, partition_id=0, num_partitions=3, secagg="required")
            time.sleep(2)
        assert run.returncode == 0, federation.log("submit")
        rounds, result = RunDirectory(federation.output).rounds(), federation.result()
        held = {
            p: p.read_bytes()
            for p in federation.folder.rglob("*")
            if p.is_file() and not p.relative_to(federation.folder).parts[0].startswith("state")
        }
    assert [row["admitted"] for row in rounds] == [[], [0, 1, 2]]
    spoiled, expected = Plain(KEYS, secagg__max_samples=128), Plain(KEYS, secagg__max_samples=128)
    first = expected.state
    spoiled.play(range(3))
    expected.play([])
    expected.play(range(3))
    needles = secrets_of(spoiled, first) + secrets_of(expected, first)
    saved = RunDirectory(federation.output).checkpoints.load()
    assert saved is not None
    for name, tensor in saved.tensors.items():
        assert torch.allclose(tensor, expected.state[name], rtol=0, atol=2e-6), name
    assert result["privacy"]["secagg"]["enabled"]
    assert not any("simulation" in line for line in result["privacy"]["not_covered"])
    assert (federation.folder / "superlink.db") in held
    assert not [str(path) for path, found in held.items() for needle in needles if needle in found]
    assert not [needle.hex() for needle in needles if needle in midway]
    elements = sum(tensor.numel() for tensor in first.values())
    assert f"'<u4', 'fortran_order': False, 'shape': ({elements},)".encode() in midway, (
        "no masked upload is in this copy"
    )
    for name, tensor in first.items():
        if found := pieces(tensor.contiguous().numpy().tobytes()):
            assert any(piece in midway for piece in found), (
                f"the search does not find the download's {name}"
            )


def test_a_run_names_on_node_and_server_only_what_their_processes_allow(tmp_path: Path) -> None:
    """The server allows the method, and the nodes do not; nobody allows the rest."""
    made, own = tmp_path / "made", {"method": "tests.deployment.paced:Paced"}
    refused = {
        "set output-root to a folder above it in PFEDLORA_SERVER_ALLOWS": {"output": "/tmp/else"},
        "set allow-code='os' in PFEDLORA_SERVER_ALLOWS": {
            "dataset": "os:system",
            "data-path": f"id > {made}",
        },
        "set allow-code='tests.deployment.paced' in its node-config": own,
    }
    with Federation(tmp_path / "federation") as federation:
        federation.start_superlink()
        for node in range(3):
            federation.start_node(node, partition_id=node, allow_code="")
        for line, keys in refused.items():
            before = len(federation.log("submit")) if line != next(iter(refused)) else 0
            assert federation.run(KEYS | keys, "--overwrite") == 1
            assert line in federation.log("submit")[before:].replace("\n", " ")
    assert not made.exists()


def test_own_data_and_process_isolation_outlive_a_killed_superlink(tmp_path: Path) -> None:
    """Nodes with a .npz each and no partition-id. The SuperLink is killed after round 1 and started
    again: the ServerApp, a process of its own, goes on when that was quick enough for Flower, and
    else the run is resumed."""
    shared = datasets.load("digits")
    places = []
    for node in range(2):
        part = slice(100 * node, 100 * (node + 1))
        np.savez(
            tmp_path / f"own{node}.npz", images=shared.inputs[part], labels=shared.labels[part]
        )
        places.append(f"npz:{tmp_path}/own{node}.npz")
    keys = KEYS | {"clients": 2, "dataset": "digits", "classes": 12}
    with Federation(tmp_path / "federation", isolation="process") as federation:
        superlink = federation.start_superlink()
        federation.start_superexec("superexec", federation.port)
        for node, place in enumerate(places):
            federation.start_node(node, dataset=place)
        run = federation.submit(keys)
        wait(lambda: RunDirectory(federation.output).rounds(), run)
        superlink.kill()
        superlink.wait()
        federation.start_superlink()
        if run.wait(PATIENCE):
            assert federation.run(keys, "--resume") == 0, federation.log("submit")
        result = federation.result()
        numbers = json.loads((federation.output / "server" / "numbers.json").read_text())
        names = [(federation.folder / f"state{node}" / "name").read_text() for node in range(2)]
    expected = OwnData(
        {numbers[name]: place for name, place in zip(names, places, strict=True)}, keys
    )
    assert result["shared_sha256"] == sha256(expected, 2)
    assert result["partition"] == "own"
    assert result["lost"] == 0
    assert result["versions"] == {", ".join(f"{n} {v}" for n, v in told_versions().items()): 2}


@pytest.mark.skipif(
    Version(version("flwr")) >= Version("1.43"), reason="Flower serves gRPC up to 1.42"
)
def test_three_nodes_over_grpc_reach_the_same_bits(tmp_path: Path) -> None:
    """Flower's switch makes the SuperLink offer gRPC; SuperNodes speak it up to 1.39, whose code
    runs here on the nodes' side."""
    old = tmp_path / "old"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(old),
        OLD_FLOWER,
    ]
    if subprocess.run(command, capture_output=True, timeout=120, check=False).returncode:
        pytest.skip(
            f"{OLD_FLOWER}, the last Flower whose SuperNode speaks gRPC, cannot be downloaded"
        )
    with zipfile.ZipFile(next(old.glob("*.whl"))) as wheel:
        wheel.extractall(old / "code")
    port = free_port()
    keys = KEYS | {"rounds": 1}
    with Federation(tmp_path / "federation") as federation:
        federation.start_superlink(
            "--fleet-api-address", f"127.0.0.1:{port}", FLWR_INTERNAL_GRPC_FLEET_API="1"
        )
        path = f"{old / 'code'}:{federation.environment['PYTHONPATH']}"
        federation.port, http = port, federation.port
        federation.environment["PYTHONPATH"], here = path, federation.environment["PYTHONPATH"]
        for node in range(3):
            federation.start_node(node, "--grpc-rere", partition_id=node, num_partitions=3)
        federation.port, federation.environment["PYTHONPATH"] = http, here
        assert federation.run(keys) == 0, federation.log("submit")
        assert all(
            "gRPC Fleet API is deprecated" in federation.log(f"node{node}") for node in range(3)
        )
        result = federation.result()
    assert result["shared_sha256"] == sha256(Plain(keys), 1)


def test_the_doctor_names_nodes_by_their_keys_and_a_run_says_why_a_superlink_is_not_reached(
    tmp_path: Path,
) -> None:
    tls = tmp_path / "certificates"
    make_certificates(tls, ["127.0.0.1"], nodes=2, days=30, renew=False)
    with Federation(tmp_path / "federation", tls=tls) as federation:
        federation.start_superlink()
        for node in range(2):
            federation.flwr("supernode", "register", str(tls / f"node{node}.pub"))
        federation.start_node(0, partition_id=0, num_partitions=3)

        def doctor() -> tuple[int, str]:
            done = subprocess.run(
                [tool("pfedlora"), "doctor", "--superlink", "test"],
                env=federation.environment | {"COLUMNS": "200"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            return done.returncode, done.stdout

        wait(lambda: "1 online" in doctor()[1])
        code, said = doctor()
        assert code == 1
        assert "1 to fix" in said
        assert "start the SuperNodes that are offline (1), or unregister them" in said
        assert "2 known, 1 online" in said
        assert re.search(r"online since \S+ \S+ UTC, key node0\.pub", said)
        assert re.search(r"registered since \S+ \S+ UTC, key node1\.pub", said)
        home = federation.folder / "flwr" / "config.toml"
        insecure = re.sub("root-certificates.*", "insecure = true", home.read_text())
        home.write_text(insecure)
        assert federation.run(KEYS) == 1
        assert (
            "failed: the SuperLink speaks TLS, and the connection says insecure = true; write"
            in federation.log("submit")
        )
