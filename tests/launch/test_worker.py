"""Runs in warm workers: none finds what another has left, and none outlives who asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pfedlora_flwr import config
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.launch.processes import is_running
from pfedlora_flwr.launch.worker import Share, Worker
from pfedlora_flwr.runs.begin import continued
from pfedlora_flwr.runs.directory import RunDirectory
from tests.conftest import ROOT, Cli, key_words, keys_in, named_keys, result_of, run_locally

pytestmark = pytest.mark.slow
KEYS = keys_in(
    "method=warm_mine:Mine models=cnn5 clients=2 rounds=2 dataset=synthetic:60 batch-"
    "size=16 partition.kind=iid"
)
MINE = "from pfedlora_flwr.methods.pfedlora import PFedLoRA\n\nclass Mine(PFedLoRA):\n    mu = 1\n"
UNTIDY = '''
import logging, os, random, signal, sys, tempfile
import numpy, torch
from pfedlora_flwr.federation.model_cache import MODELS
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.training import loop


class Mine(PFedLoRA):
    """Leaves its process in a mess."""

    def aggregate(self, uploads, state, round):
        merged = super().aggregate(uploads, state, round)
        if round == 2:
            torch.manual_seed(1)
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)
            torch.set_num_threads(3)
            torch.nn.Linear.forward = lambda self, x: x.new_zeros(len(x), self.out_features)
            loop.EVALUATION_BATCH["cpu"] = 1
            MODELS.limit = 0
            random.seed(1), numpy.random.seed(1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.chdir(tempfile.gettempdir())
            os.environ["PFEDLORA_DATA"] = os.environ["HOME"] = tempfile.mkdtemp()
            logging.getLogger("pfedlora_flwr").handlers.append(logging.StreamHandler())
            sys.path.clear()
        return merged
'''


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """One, in a folder with `warm_mine.py`."""
    (tmp_path / "warm_mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("warm_mine", None)
    made = Worker(Share(tuple(sorted(os.sched_getaffinity(0)))[:1]))
    yield made
    made.close()
    sys.modules.pop("warm_mine", None)
    assert not is_running(made.pid)


def run(output: Path, **keys: object) -> RunConfig:
    return config.located(config.run_config(KEYS | named_keys(keys)), output)


def within(seconds: float, what: Callable[[], object]) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def bits(output: Path) -> list[object]:
    same = ("models_sha256", "shared_sha256", "accuracy", "flops", "partition")
    return [result_of(output)[name] for name in same]


def test_a_runs_bits_do_not_depend_on_what_its_worker_ran_before(
    tmp_path: Path, worker: Worker
) -> None:
    alone = tmp_path / "alone"
    cli = Cli(tmp_path, "bits")
    assert cli.run("alone", "--engine", "local", *key_words(KEYS)).code == 0
    for name, code in (("untidy", UNTIDY), ("after", MINE), ("other", MINE + "    idea = 'x'\n")):
        (tmp_path / "warm_mine.py").write_text(code)
        worker.start(run(tmp_path / name), "local")
        assert worker.result()["status"] == "completed", name
        assert bits(tmp_path / name) == bits(alone), name
        assert (tmp_path / name / "source" / "warm_mine.py").read_text() == code
        log = (tmp_path / name / "logs" / "run.log").read_text()
        assert log.count(" data: ") == 1, name  # its own, and nobody else's


def test_a_run_that_fails_is_named_and_leaves_its_worker_to_the_next(
    tmp_path: Path, worker: Worker
) -> None:
    for name, raised, said in (
        ("raises", "raise ZeroDivisionError('by nothing')", "ZeroDivisionError: by nothing"),
        ("exits", "import os; os._exit(3)", "its process ended with exit code 3"),
        ("killed", "import os; os.kill(os.getpid(), 9)", "its process ended with exit code -9"),
    ):
        (tmp_path / "warm_mine.py").write_text(
            f"{MINE}\n    def aggregate(self, uploads, state, round):\n        {raised}\n"
        )
        worker.start(run(tmp_path / name), "local")
        result = worker.result()
        assert result["status"] == "failed", name
        assert said in str(result["error"])
        assert worker.alive
    worker.start(run(tmp_path / "diverges", lr=1e15, method="standalone"), "local")
    assert "its loss is nan" in str(worker.result()["error"])
    worker.start(run(tmp_path / "raises", method="standalone"), "local")
    mistake = worker.result()["error"]
    assert str(mistake).startswith("output ")  # a user's mistake is a line
    assert "exists; continue it with resume=true" in str(mistake)
    worker.start(run(tmp_path / "next", method="standalone"), "local")
    assert worker.result()["status"] == "completed"


def test_a_signal_stops_the_run_and_not_its_worker(tmp_path: Path, worker: Worker) -> None:
    for i, (number, by) in enumerate(((signal.SIGINT, "user"), (signal.SIGTERM, "system"))):
        going = RunDirectory(tmp_path / str(i))
        worker.start(run(going.path, rounds=40), "local")
        within(60, lambda going=going: going.checkpoints.rounds()[-1:] > [1])
        worker.stop(number)
        result = worker.result()
        assert (result["status"], result["stopped_by"]) == ("stopped", by)
        worker.stop(number)  # there is nothing to stop
    worker.start(continued(run(going.path, rounds=40)), "local")
    assert worker.result()["status"] == "completed"
    there = run_locally(tmp_path / "there", KEYS | {"rounds": 40, "method": "pfedlora"})
    assert bits(going.path) == bits(there.output)


def test_what_a_killed_worker_was_at_is_stopped_and_said(tmp_path: Path, worker: Worker) -> None:
    going = RunDirectory(tmp_path / "run")
    worker.start(run(going.path, rounds=500), "local")
    within(60, lambda: going.checkpoints.rounds()[-1:] > [1])
    [carried_out] = psutil.Process(worker.pid).children()
    os.kill(worker.pid, signal.SIGKILL)
    within(10, lambda: worker.ended)
    assert worker.result() == {
        "status": "failed",
        "error": "the worker that carried it out ended with exit code -9",
    }
    assert not is_running(carried_out.pid)
    assert not worker.alive
    assert (going.result() or {})["status"] == "stopped"  # and so it can go on


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from pfedlora_flwr import config\nfrom pfedlora_flwr.launch.worker import Share, Worker\n"
        f"keys = {KEYS | {'method': 'standalone', 'rounds': 500}!r}\n"
        "busy, idle = Worker(Share()), Worker(Share())\n"
        "busy.start(config.located(config.run_config(keys), Path(sys.argv[1])), 'local')\n"
        "print(busy.pid, idle.pid, flush=True)\ntime.sleep(600)\n"
    )
    going = RunDirectory(tmp_path / "run")
    command = [sys.executable, "-c", code, str(going.path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        within(60, lambda: going.checkpoints.rounds()[-1:] > [1])
        pids += [child.pid for child in psutil.Process(pids[0]).children()]
        assert len(pids) == 3
        parent.kill()
    within(20, lambda: not any(is_running(pid) for pid in pids))
