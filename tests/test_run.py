"""Real runs through the front door: the same bits whatever the actors, `flwr run` or a kill, and
every mistake one clear line."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from pfedlora_flwr.launch.flower import QUIET
from pfedlora_flwr.launch.processes import MARKER, free_port, stop_marked
from tests.alike import SAME
from tests.conftest import ROOT, Call, Cli, Done, key_words, run_locally

pytestmark = pytest.mark.slow
KEYS = {
    "clients": 5,
    "participation": 0.8,
    "rounds": 6,
    "batch-size": 16,
    "partition.samples-per-client": 40,
    "seed": 7,
}
SMALL = key_words(KEYS)


def facts(result: dict[str, Any]) -> dict[str, Any]:
    """What must be equal to the last bit (the wire also carries seconds and paths)."""
    names = (*SAME, "status", "rounds", "per_client", "partition", "to_target")
    sent = {
        name: count
        for name, count in result["communication"].items()
        if not name.startswith("wire")
    }
    return {name: result[name] for name in names} | sent


@pytest.fixture(scope="session")
def reference(shared_cli: Cli) -> Done:
    """An undisturbed run with two actors. It has a loopback interface and no other network."""
    output = shared_cli.folder / "reference"
    command = offline(shared_cli.command("run", "-o", f"output={output}", *SMALL, "-o", "actors=2"))
    done = subprocess.run(
        command,
        env=shared_cli.environment,
        cwd=shared_cli.folder,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Done(0, done.stdout, done.stderr, output)


def offline(command: list[str]) -> list[str]:
    """The command in a network namespace of its own; as it is where this user may not make one."""
    if (
        not shutil.which("unshare")
        or subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode
    ):
        return command
    up = (
        "import fcntl,socket,struct;s=socket.socket()"
        ";fcntl.ioctl(s,0x8914,struct.pack('16sh',b'lo',0x41))"
    )
    return [
        "unshare",
        "-rn",
        "sh",
        "-c",
        f'{sys.executable} -c "{up}" && exec "$@"',
        "sh",
        *command,
    ]


def test_a_run_leaves_what_a_script_relies_on(reference: Done) -> None:
    result, accuracy = reference.result, reference.result["accuracy"]
    rounds, clients = reference.rows("rounds.jsonl"), reference.rows("clients.jsonl")
    assert result["status"] == "completed"
    assert [row["round"] for row in rounds] == [*range(7)]
    assert len(clients) == 6 * 4
    assert all(row["sampled"] == row["admitted"] for row in rounds)
    assert {len(row["admitted"]) for row in rounds[1:]} == {4}
    assert {row[f"parameters_{way}"] for row in clients for way in ("up", "down")} == {30_670}
    assert result["communication"]["parameters_up"] == 6 * 4 * 30_670
    assert all(row["wire_up"] > row["bytes_up"] == 4 * 30_670 for row in clients)
    mean = sum(row["accuracy"] for row in result["per_client"].values()) / 5
    assert accuracy["final"] == pytest.approx(mean) == pytest.approx(rounds[-1]["accuracy"])
    assert accuracy["max_test"] == max(row["accuracy"] for row in rounds)
    best = max(rounds, key=lambda row: (row["validation_accuracy"], -row["round"]))
    assert accuracy["best_validation_round"] == best["round"]
    assert accuracy["at_best_validation"] == best["accuracy"]
    for rows in (rounds, clients):
        assert result["flops"] == sum(row["flops"] for row in rows)
    assert {path.name for path in (reference.output / "server").glob("*.checkpoint")} == {
        "round-000005.checkpoint",
        "round-000006.checkpoint",
    }
    assert "mean test accuracy" in reference.stdout
    assert all(f"cnn{k + 1}" in reference.stdout for k in range(5))
    assert "round 3/6" in reference.stdout, "no progress where there is no terminal"


def test_plain_flwr_run_gives_the_same_bits(
    shared_cli: Cli, reference: Done, tmp_path: Path
) -> None:
    output = shared_cli.folder / "flwr-run"
    marker = f"test-{os.getpid()}-{time.time_ns()}"
    tools = str(Path(sys.executable).parent)
    environment = (
        shared_cli.environment
        | QUIET
        | {
            "FLWR_HOME": str(tmp_path),
            MARKER: marker,
            "PATH": f"{tools}:{os.environ['PATH']}",
        }
    )
    environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"] = str(free_port())
    config = " ".join([f'output="{output}"', *(f"{key}={value}" for key, value in KEYS.items())])
    federation = f"num-supernodes={KEYS['clients']} client-resources-num-cpus=1"
    try:
        command = ["flwr", "run", ".", "--federation-config", federation, "-c", config, "--stream"]
        done = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        deadline = time.monotonic() + 30
        while not (output / "result.json").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        stop_marked(marker)
    assert facts(Done(0, "", "", output).result) == facts(reference.result)


def test_the_engines_go_on_with_each_others_runs_to_the_same_bits(
    shared_cli: Cli, reference: Done, pfedlora: Call
) -> None:
    """Begun by the local engine; under Flower's with two actors its launcher and SuperLink are
    killed, and the rest hangs; stopped there with one actor by Ctrl-C; completed by the local
    engine."""
    output = run_locally(shared_cli.folder / "both", KEYS | {"rounds": 1}).output
    more = ("-o", "rounds=6", "-o", "observers=tests.failing:Slow")
    process = shared_cli.start("both", "--resume", *more, "-o", "actors=2")
    wait_for_rounds(output, 2)
    shared_cli.kill(process)
    left = shared_cli.processes()
    for one in left:
        one.suspend()
    assert left
    assert not (output / "result.json").exists(), "it was over before it was killed"

    process = shared_cli.start("both", "--resume", "-o", "actors=1")
    assert process.stdout is not None
    said = takewhile(lambda line: not line.startswith("round "), process.stdout)
    assert any(line.endswith("that a killed launcher left running\n") for line in [*said])
    assert not any(one.is_running() for one in left)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert stderr.startswith("stopped by the user after round ")
    assert "\nto continue: pfedlora run --resume -o output=both\n" in stderr
    assert not shared_cli.alive()
    stopped = Done(0, "", "", output).result
    assert stopped["status"] == "stopped"
    assert stopped["accuracy"]["final"] > 0

    code, out, err = pfedlora("run", "-o", f"output={output}", "--resume", "--engine", "local")
    assert code == 0, err
    assert "round 6/6" in out
    done = Done(code, out, err, output)
    assert facts(done.result) == facts(reference.result)
    assert [row["round"] for row in done.rows("rounds.jsonl")] == [*range(7)]


def test_the_local_engine_gives_the_same_bits(tmp_path: Path, reference: Done) -> None:
    done = run_locally(tmp_path / "local", KEYS)
    assert facts(done.result) == facts(reference.result)


def test_the_quickstart_reaches_its_accuracy_three_rounds_early(
    pfedlora: Call, tmp_path: Path
) -> None:
    few = ("-o", "rounds=9", "-o", "output=quickstart")
    code, _, err = pfedlora("run", "quickstart", *few, "--engine", "local")
    assert code == 0, err
    result = Done(code, "", err, tmp_path / "quickstart").result
    assert result["accuracy"]["final"] >= 0.95
    assert result["clients"] == 10
    models = {row["model"] for row in result["per_client"].values()}
    assert models == {"cnn1", "cnn2", "cnn3", "cnn4", "cnn5"}


def test_a_client_that_raises_in_every_round_fails_the_run(pfedlora: Call, tmp_path: Path) -> None:
    words = [*SMALL, "-o", "participation=1", "-o", "method=tests.failing:ClientRaises"]
    code, _, err = pfedlora("run", *words, "--engine", "local", "-o", "output=raises")
    assert code == 1
    assert "4 of 5 clients succeeded" in err
    assert (
        "client 2: method 'tests.failing:ClientRaises': RuntimeError: the disk of client 2 is on"
        " fire, at " in err
    )
    assert "Traceback" not in err
    done = Done(code, "", err, tmp_path / "raises")
    assert done.result["status"] == "failed"
    failed = [row for row in done.rows("clients.jsonl") if row["status"] == "failed"]
    assert {row["client"] for row in failed} == {2}


def test_a_server_that_raises_fails_the_run_and_it_can_be_resumed(
    pfedlora: Call, tmp_path: Path
) -> None:
    output, mended = tmp_path / "server", tmp_path / "mended"
    local = ["run", "--engine", "local", "-o", f"output={output}"]
    words = ["-o", "rounds=2", "-o", "method=tests.failing:ServerRaises", "-o"]
    code, _, err = pfedlora(*local, *SMALL, *words, f"method-options=at=2 mended={mended}")
    assert code == 1
    assert "ZeroDivisionError: the server divides by nothing" in err
    assert "Traceback" not in err
    assert Done(code, "", err, output).result["rounds"] == 1
    mended.touch()
    code, _, err = pfedlora(*local, "--resume")
    assert code == 0, err
    assert Done(code, "", err, output).result["rounds"] == 2


def wait_for_rounds(output: Path, rounds: int, timeout: float = 300) -> None:
    """Until `rounds.jsonl` has the line of round `rounds`."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if (output / "rounds.jsonl").exists() and len(
            (output / "rounds.jsonl").read_text().splitlines()
        ) > rounds:
            return
        time.sleep(0.02)
    raise AssertionError(f"no {rounds} rounds within {timeout} s")
