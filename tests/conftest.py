"""What the tests share: single-threaded torch, the real CIFAR-10 where it is at hand, and real runs through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from rich.console import Console
from xdist.scheduler import LoadScopeScheduling

from pfedlora_flwr import cli as command_line
from pfedlora_flwr import config
from pfedlora_flwr.launch.execute import execute
from pfedlora_flwr.launch.processes import MARKER, is_running, stop_marked

ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, so that no worker is left with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


class _TogetherOrAlone(LoadScopeScheduling):
    """The tests of test_run.py share a run, so one worker has all of them; every other test goes to the next free one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file.endswith("/test_run.py") else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _TogetherOrAlone(config, log)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cifar10() -> str:
    """The folder of the real CIFAR-10 in parquet files: $PFEDLORA_DATA, or shared/data/cifar10 in the folder that holds the checkout."""
    folder = Path(os.environ.get("PFEDLORA_DATA", ROOT.parent / "shared" / "data" / "cifar10"))
    if not (folder / "train.parquet").exists():
        pytest.skip(
            f"the real CIFAR-10 is not at {folder}; set PFEDLORA_DATA to the folder of train.parquet and test.parquet"
        )
    return str(folder)


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    stdout: str
    stderr: str
    output: Path

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.output / "result.json").read_text())

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.output / name).read_text().splitlines()]


class Cli:
    """Runs `pfedlora`, and holds that no process outlives it."""

    def __init__(self, folder: Path, guard: str) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "PFEDLORA_TEST": guard,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
        }

    def command(self, *words: str) -> list[str]:
        return [str(Path(sys.executable).with_name("pfedlora")), *words]

    def run(self, name: str, *words: str, timeout: float = 180) -> Done:
        """`pfedlora run -o output=NAME WORDS…`, to its end."""
        output = self.folder / name
        return self(*("run", "-o", f"output={output}", *words), timeout=timeout, output=output)

    def __call__(self, *words: str, timeout: float = 180, output: Path | None = None) -> Done:
        done = subprocess.run(
            self.command(*words),
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr, output or self.folder)

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        """The same in the background."""
        command = self.command("run", "-o", f"output={self.folder / name}", *words)
        return subprocess.Popen(
            command,
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kills a launcher and its SuperLink."""
        [superlink] = [
            found for found, line in self.processes().items() if "flower-superlink" in line
        ]
        process.kill()
        superlink.kill()
        process.communicate(timeout=10)

    def processes(self) -> dict[psutil.Process, str]:
        """The processes that this test started and that still run, with their command lines."""
        found = {}
        for process in psutil.process_iter():
            try:
                if process.environ().get("PFEDLORA_TEST") == self.environment[
                    "PFEDLORA_TEST"
                ] and is_running(process.pid):
                    found[process] = " ".join(process.cmdline())
            except (psutil.Error, OSError):
                continue
        return found

    def alive(self) -> list[str]:
        """The beginnings of their command lines."""
        return [line[:200] for line in self.processes().values()]


def run_locally(output: Path, keys: Mapping[str, object]) -> Done:
    """A run by the local engine in the test's own process, checked and carried out as `pfedlora run --engine local` does."""
    experiment = config.located(config.from_flat(keys), output)
    result = execute(experiment, lambda state, rounds: None, Console(quiet=True), engine="local")
    return Done(0 if result["status"] == "completed" else 1, "", result["error"] or "", output)


@pytest.fixture(scope="session")
def shared_cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """One folder of runs for tests that compare runs with each other."""
    yield from _cli(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def trained_run(shared_cli: Cli) -> Done:
    """A small completed run on the digits, for tests that use its models: three clients, CNN-1 to CNN-3."""
    keys = {
        "clients": "3",
        "partition.kind": "iid",
        "batch-size": "16",
        "rounds": "3",
        "tensorboard": "true",
    }
    done = shared_cli.run(
        "trained",
        *(word for key, value in keys.items() for word in ("-o", f"{key}={value}")),
        "--engine",
        "local",
    )
    assert done.code == 0, done.stderr
    return done


Call = Callable[..., tuple[int, str, str]]
"""`pfedlora WORDS…`: exit code, stdout, stderr."""


@pytest.fixture
def pfedlora(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Call:
    """The command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pfedlora", *words])
        with pytest.raises(SystemExit) as raised:
            command_line.main()
        return int(raised.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    yield from _cli(tmp_path)


def _cli(folder: Path) -> Iterator[Cli]:
    guard = f"{os.getpid()}-{folder}"
    yield Cli(folder, guard)
    left = Cli(folder, guard).alive()
    for process in psutil.process_iter():
        try:
            if process.environ().get("PFEDLORA_TEST") == guard:
                stop_marked(process.environ().get(MARKER, "none"))
        except (psutil.Error, OSError):
            continue
    assert not left, f"left running: {left}"
