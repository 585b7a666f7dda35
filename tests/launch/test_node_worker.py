"""A node's warm worker beside processes that stand for those that Flower starts, one a message."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.node_message import KEYS, ask, asked, write_message
from pfedlora_flwr.federation import flower_compat as flower
from pfedlora_flwr.federation import warm
from pfedlora_flwr.launch import node_worker
from pfedlora_flwr.launch.processes import MARKER, marked, stop_marked
from tests.conftest import ROOT
from tests.deployment.paced import GATES

SMALL = KEYS | {"dataset": "synthetic:90", "batch-size": 16, "models": "cnn5"}
PACED = SMALL | {"method": "tests.deployment.paced:Paced"}
PATIENCE = 120.0
slow = pytest.mark.slow


def wait(ready: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := ready()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
    return found


class Node:
    """A node's state-path, whose socket's name is longer than the system's bound."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state, self.gates = folder / ("state" + "x" * 110), folder / "gates"
        self.own, self.marker = folder / "own", f"worker-{os.getpid()}-{time.time_ns()}"
        self.gates.mkdir()
        self.own.mkdir()
        path = os.pathsep.join([str(self.own), str(ROOT)])
        for name, value in {MARKER: self.marker, GATES: self.gates, "PYTHONPATH": path}.items():
            monkeypatch.setenv(name, str(value))
        write_message(self.state, SMALL)

    def begin(self, keys: dict[str, Any] = SMALL, **config: Any) -> subprocess.Popen[str]:
        return asked(self.state, keys, _named(config))

    def ask(self, keys: dict[str, Any] = SMALL, **config: Any) -> dict[str, Any]:
        return answer(self.begin(keys, **config))

    def error(self, keys: dict[str, Any], **config: Any) -> str:
        """What this process answers."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["flwr-clientapp"])
            for name in ("_run_id", "_task_id", "_node_id"):
                patch.setattr(TaskIdentity, name, None)
            return str(ask(self.state, keys, _named(config))["error"])

    @property
    def socket(self) -> Path:
        return self.state / warm.FOLDER / "socket"

    def workers(self) -> list[int]:
        """The processes of the worker: itself, before the visits in it."""
        found = []
        for process in marked(self.marker):
            with suppress(psutil.Error):
                if node_worker.__name__ in process.cmdline():
                    found.append(process.pid)
        return found

    def is_visiting(self, gate: str = "training-0-1") -> int:
        """The process that is at a closed gate."""
        file = self.gates / gate
        return int(file.read_text() or 0) if file.exists() else 0


def _named(config: dict[str, Any]) -> dict[str, Any]:
    return {"allow-code": "tests.deployment.paced"} | {
        name.replace("_", "-"): value for name, value in config.items()
    }


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=PATIENCE)
    assert out, err
    return {**json.loads(out.splitlines()[-1]), "said": err}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path, monkeypatch)
    try:
        yield made
    finally:
        stop_marked(made.marker)


@slow
def test_a_warm_worker_answers_with_the_same_bits_and_refusals_as_a_process_of_its_own(
    node: Node,
) -> None:
    cold = node.ask(warm=False)
    assert cold["torch"]
    assert not node.workers()
    first = node.ask()
    (worker,) = node.workers()
    second = node.ask()
    assert node.workers() == [worker]
    assert [answer["torch"] for answer in (first, second)] == [False, False]
    for name in cold.keys() - {"seconds", "worker", "processor", "memory", "torch", "said"}:
        assert cold[name] == first[name] == second[name], name
    assert len({answer["worker"] for answer in (cold, first, second)}) == 3
    assert worker not in (int(first["worker"]), int(second["worker"]))
    assert node.socket.stat().st_mode & 0o777 == 0o600
    assert node.socket.parent.stat().st_mode & 0o777 == 0o700
    for keys, config in (
        (SMALL | {"method": "os:system"}, {}),
        (SMALL, {"stat-path": "x"}),
    ):
        refused = node.ask(keys, **config)
        assert refused["error"] == node.error(keys, **config, warm=False) != ""
        assert not refused["torch"]
    assert "warm is 'maybe' in the node-config" in node.error(SMALL, warm="maybe")
    assert "warm-seconds is 'x' in the node-config" in node.error(SMALL, warm_seconds="x")
    assert node.workers() == [worker]
    os.kill(worker, signal.SIGKILL)
    wait(lambda: not node.workers())
    third = node.ask()
    assert "the warm worker died" in third["said"]
    assert (third["sha256"], third["torch"]) == (cold["sha256"], False)
    assert node.workers() not in ([], [worker])


@slow
def test_one_visit_at_a_time_and_one_that_dies_is_not_done_again(node: Node) -> None:
    gate = node.gates / "close-training-0-1"
    gate.touch()
    one = node.begin(PACED)
    visit = wait(node.is_visiting)
    two = node.begin(PACED)
    wait(lambda: len(node.workers()) == 2)
    time.sleep(3)
    assert node.is_visiting() == visit, "the second waits for its turn"
    os.kill(visit, signal.SIGKILL)
    lost = answer(one)
    assert "VisitEnded" in lost["error"]
    assert "warm worker" not in lost["said"]
    other = wait(lambda: (found := node.is_visiting()) != visit and found)
    two.kill()  # as Flower does when a run is stopped
    wait(lambda: not psutil.pid_exists(other))
    (worker,) = node.workers()
    write_message(node.state, SMALL, seconds=3)
    visit = node.is_visiting()
    late = node.ask(PACED)
    assert "VisitEnded" in late["error"]
    assert "no answer while the message was valid (3 s)" in late["error"]
    wait(lambda: node.workers() == [worker])
    assert node.is_visiting() != visit
    write_message(node.state, SMALL)
    gate.unlink()
    pair = [node.begin(PACED) for _ in range(2)]
    assert len({answer(process)["sha256"] for process in pair}) == 1
    assert node.workers() == [worker]
    assert f"visit {visit} ended with -9" in (node.socket.parent / "log").read_text()


@slow
def test_a_worker_ends_when_it_is_idle_when_its_parent_does_and_when_code_has_changed(
    node: Node,
) -> None:
    code = node.own / "sitecustomize.py"  # stands for any file that a worker has imported
    code.touch()
    node.ask()
    (worker,) = node.workers()
    os.utime(code, (1, 1))
    changed = node.ask(warm_seconds=1)
    assert changed["said"] == "", "no warning: it ended as it should"
    assert node.workers() != [worker]
    wait(lambda: not node.workers())
    assert not node.socket.exists()
    node.ask()
    os.kill(node.workers()[0], signal.SIGTERM)  # as systemd stops a unit
    wait(lambda: not node.workers())
    assert node.ask()["said"] == "", "no warning: it was told to end"
    os.kill(node.workers()[0], signal.SIGTERM)
    words = [sys.executable, "-m", "benchmarks.node_message", str(node.state), json.dumps(SMALL)]
    parent = subprocess.Popen(
        ["sh", "-c", '"$@" >&2; touch done; sleep 300', "sh", *words, "{}"],
        cwd=node.own,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    wait((node.own / "done").exists)
    assert len(node.workers()) == 1
    parent.kill()
    parent.wait()
    wait(lambda: not node.workers())


@slow
def test_where_no_worker_stays_alive_the_process_says_so_and_answers_itself(node: Node) -> None:
    (node.own / "sitecustomize.py").write_text(
        f"import os, sys\nif {node_worker.__name__!r} in sys.orig_argv:\n    os._exit(3)\n"
    )
    found = node.ask()
    assert found["torch"]
    assert "sha256" in found
    assert found["said"].count("the warm worker died") == 3
    assert "this process answers it" in found["said"]


def test_another_user_is_turned_away_at_both_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ends = socket.socketpair()
    with ends[0], ends[1], socket.socket(socket.AF_UNIX) as listener:
        socket.send_fds(ends[1], [b"{}"], [])
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        monkeypatch.setattr(os, "getuid", lambda: 4321)
        assert node_worker._told(ends[0]) == ({}, [])
        with pytest.raises(PermissionError, match="another user"):
            warm._connect(tmp_path)
    assert "another user knocked" in capsys.readouterr().err


@pytest.mark.slow
def test_what_the_client_raises_comes_back_with_its_name_text_and_traceback(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does that its answer is larger than Flower's encoding can read; a message that is, this
    process answers."""

    class Own(ClientApp):
        def __call__(self, message: Any, context: Any) -> Any:
            context.state["kept"] = message.content.config_records["fitins.config"]
            raise json.JSONDecodeError("own text", "", 0)

    class Echo(ClientApp):
        def __call__(self, message: Message, context: Any) -> Message:
            return Message(message.content, reply_to=message)

    def raised_by(app: ClientApp) -> Exception:
        ends = socket.socketpair()
        if not (child := os.fork()):
            with ends[0].makefile("rwb") as stream:
                warm.serve(stream, app)
            os._exit(0)
        ends[0].close()
        with ends[1], pytest.raises(Exception, match=r"own text|bytes") as raised:
            warm._visited(ends[1], told, context)
        os.waitpid(child, 0)
        return raised.value

    for name, value in {"_run_id": 1, "_task_id": 1, "_node_id": 2}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    told = (node.state / "message").read_bytes()
    context = Context(1, 2, {"state-path": str(node.state)}, RecordDict(), {})
    raised = raised_by(Own())
    assert str(type(raised)) == "<class 'json.decoder.JSONDecodeError'>"
    assert "in __call__" in raised.__notes__[0]
    assert "kept" in context.state, "as after an exception in this process"
    monkeypatch.setattr(warm, "_MOST", len(told) // 2)
    monkeypatch.setattr(sys, "argv", ["flwr-clientapp"])
    assert str(raised_by(Echo())).endswith("bytes: set warm=false")
    assert warm.answered(flower.decoded(told), context) is None
    assert not node.socket.parent.exists()
