"""SIGKILL of every process at several points of a round: nothing hangs, and the run comes to the
bits of an undisturbed one.

By itself (a client is asked once more within the round) or after `--resume`; each test prints
which, as a line of a table."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pfedlora_flwr.files import tensors_sha256
from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import Cli, key_words, keys_in, result_of
from tests.deployment.paced import GATES
from tests.deployment.processes import PATIENCE, Federation, wait
from tests.plain import Plain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KEYS = keys_in("clients=3 rounds=2 batch-size=16 dataset=synthetic:300 partition.kind=iid")
RUN = KEYS | {"evaluate-initial": "false", "method": "tests.deployment.paced:Paced", "actors": 2}
POINTS = ("training", "trained", "saved", "aggregating")
"""Of round 2: client 0 is about to train; has trained and saved nothing; has saved its model; the
server has merged the uploads and written no checkpoint."""
DEFAULT = {("actor", "training")}


def matrix(*targets: str) -> list[object]:
    """Every target at every point; all but the most telling only by `make fault-test`."""
    pairs = [
        (t, point)
        for t in targets
        for point in POINTS
        if point != "aggregating" or t not in ("actor", "client")
    ]
    return [
        pytest.param(*pair, marks=[] if pair in DEFAULT else pytest.mark.faults) for pair in pairs
    ]


class Gates:
    """Closes a gate of round 2 and waits for whoever comes to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def close(self, point: str) -> None:
        self.gate = {"training": "training-0-2", "aggregating": "aggregating-2"}.get(
            point, "trained-0-2"
        )
        (self.folder / f"close-{self.gate}").touch()

    def reach(self, process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> int:
        """Waits until someone stands at the gate; the id of the process."""
        gate = self.folder / self.gate
        wait(lambda: gate.exists() and gate.read_text(), process)
        return int(gate.read_text())

    def await_saved(self, folder: Path) -> None:
        """Opens the gate and waits, without a pause, until the client's model of round 2 is in
        `folder`."""
        self.open()
        deadline = time.monotonic() + PATIENCE
        while not list(folder.glob("**/round-000002.safetensors")):
            assert time.monotonic() < deadline

    def open(self) -> None:
        (self.folder / f"close-{self.gate}").unlink(missing_ok=True)


@pytest.fixture
def gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gates:
    monkeypatch.setenv(GATES, str(tmp_path / "gates"))
    return Gates(tmp_path / "gates")


@pytest.fixture(scope="module")
def undisturbed() -> str:
    torch.set_num_threads(1)
    plain = Plain(KEYS)
    plain.train(2)
    return tensors_sha256(plain.state)


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Iterator[list[str]]:
    """What is put into it is printed as a table's line."""
    words: list[str] = []
    yield words
    with capsys.disabled():
        print(f"\n| {' | '.join(words)} |")


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("target", "point"), matrix("server", "superlink", "actor", "launcher"))
def test_simulation(
    target: str, point: str, cli: Cli, gates: Gates, undisturbed: str, tell: list[str]
) -> None:
    words = key_words(RUN)
    cli.environment[GATES] = os.environ[GATES]
    output = cli.folder / "run"
    gates.close(point)
    run = cli.start("run", *words)
    pid = gates.reach(run)
    word = {"server": "flwr-simulation", "superlink": "flower-superlink"}.get(target, "")
    victims = {"launcher": [run.pid], "actor": [pid]}.get(target) or [
        p.pid for p, line in cli.processes().items() if word in line
    ]
    assert victims, f"no {word} is running"
    if point == "saved":
        gates.await_saved(output / "clients" / "0")
    for victim in victims:
        kill(victim)
    gates.open()
    began = time.monotonic()
    code = run.wait(PATIENCE)
    outcome = f"by itself, {time.monotonic() - began:.0f} s after"
    run.communicate()
    if code:
        outcome = f"exit code {code} {time.monotonic() - began:.0f} s after, then --resume"
        done = cli.run("run", *words, "--resume", timeout=PATIENCE)
        assert done.code == 0, done.stderr
    tell += ["simulation", target, point, outcome]
    result = result_of(output)
    assert (result["status"], result["shared_sha256"], result["lost"]) == (
        "completed",
        undisturbed,
        0,
    )


@pytest.mark.faults
def test_a_client_that_dies_at_every_attempt_is_left_out(
    tmp_path: Path, gates: Gates, tell: list[str]
) -> None:
    """With a lower min-success the run comes to the bits of one in which exactly this client's
    visit is left out."""
    with Federation(tmp_path / "federation", **{GATES: os.environ[GATES]}) as federation:
        federation.start_superlink()
        for node in range(3):
            federation.start_node(node, partition_id=node, num_partitions=3)
        gates.close("training")
        run = federation.submit(RUN | {"min-success": 0.6})
        killed: set[int] = set()
        deadline = time.monotonic() + 2 * PATIENCE
        while run.poll() is None:
            assert time.monotonic() < deadline
            with contextlib.suppress(FileNotFoundError, ValueError):
                pid = int((gates.folder / gates.gate).read_text())
                if pid not in killed:
                    kill(pid)
                    killed.add(pid)
            time.sleep(0.05)
        assert run.returncode == 0, federation.log("submit")
        rounds, result = RunDirectory(federation.output).rounds(), federation.result()
    tell += [
        "deployment",
        "client",
        f"training, {len(killed)} times",
        "min-success=0.6: completed without this visit",
    ]
    expected = Plain(KEYS)
    expected.train(1)
    expected.play([1, 2])
    assert [row["refused"] for row in rounds] == [[], [0]]
    assert result["shared_sha256"] == tensors_sha256(expected.state)


@pytest.mark.parametrize(
    ("target", "point"), matrix("server", "superlink", "node", "client", "submitter")
)
def test_deployment(
    target: str, point: str, tmp_path: Path, gates: Gates, undisturbed: str, tell: list[str]
) -> None:
    with Federation(tmp_path / "federation", **{GATES: os.environ[GATES]}) as federation:
        federation.start_superlink()
        for node in range(3):
            federation.start_node(node, partition_id=node, num_partitions=3)
        gates.close(point)
        run = federation.submit(RUN)
        pid = gates.reach(run)
        process = {
            "superlink": federation.superlink,
            "node": federation.nodes[0],
            "submitter": run,
        }.get(target)
        victims = (
            [process.pid]
            if process
            else (
                [pid]
                if target == "client"
                else [p.pid for p in federation.processes("flwr-serverapp")]
            )
        )
        if point == "saved":
            gates.await_saved(federation.folder / "state0")
        for victim in victims:
            kill(victim)
        if process:
            process.wait()
        gates.open()
        began = time.monotonic()
        if target == "superlink":  # what a service manager does
            federation.start_superlink()
        elif target == "node":
            federation.start_node(0, partition_id=0, num_partitions=3)
        if target == "submitter":  # the run belongs to the SuperLink, and goes on
            wait(lambda: (federation.output / "result.json").exists())
            code = 0
        else:
            code = run.wait(PATIENCE)
        outcome = f"by itself, {time.monotonic() - began:.0f} s after"
        if code:
            outcome = f"exit code {code} {time.monotonic() - began:.0f} s after, then --resume"
            assert federation.run(RUN, "--resume") == 0, federation.log("submit")
        tell += ["deployment", target, point, outcome]
        result = federation.result()
        assert (result["status"], result["shared_sha256"], result["lost"]) == (
            "completed",
            undisturbed,
            0,
        )
        assert [row["round"] for row in RunDirectory(federation.output).rounds()] == [1, 2]
