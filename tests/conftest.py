"""What the tests share: single-threaded torch, the real CIFAR-10 where it is at hand, and real runs
through the command line.

PyTorch and the package are imported where they are used: the process that hands tests to workers
reads this file, too."""

from __future__ import annotations

import atexit
import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parent.parent

# Several tests compute at once, each with processes of its own. More threads than cores would wait
# for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

MARKS = ("slow", "methods", "deployment", "cluster", "faults", "pretrained")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, so that no worker is left with one at the end: those that start commands
    before other slow ones."""
    starts = {"cli", "shared_cli"}
    items.sort(
        key=lambda item: (
            item.get_closest_marker("slow") is None,
            starts.isdisjoint(getattr(item, "fixturenames", ())),
        )
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """What collecting makes stays to the end: the garbage collector need not look through it, then
    or later. It is given back as the process ends, or libraries report it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)


TOGETHER = tuple(
    f"tests/{name}.py"
    for name in ("test_run", "test_audit", "test_kinds", "models/test_named", "test_house")
)
"""Files whose tests share something dear (a run through Flower, runs of this process, timm, the
package's imports): one worker has all of them."""


class _TogetherOrAlone(LoadScopeScheduling):
    """Every test goes to the next free worker, but for those of a file that is TOGETHER."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file.endswith(TOGETHER) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _TogetherOrAlone(config, log)


QUICK = 2.0
"""Seconds of computing, its own and its children's, that a test without a mark may take on any
machine; on a usual one it takes about a tenth of a second at most."""
LIBRARY = 100
"""Modules: a test that is the first to import so many has paid for the others, and is not
judged."""
_SECONDS = pytest.StashKey[float]()
_LOADED = pytest.StashKey[int]()
_unblamed = 0.0


def _computed() -> float:
    """Seconds that this process and its children that have ended have computed, but for those of
    fixtures."""
    spent = os.times()
    whole = spent.user + spent.system + spent.children_user + spent.children_system
    return whole - _unblamed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--hold-quick",
        action="store_true",
        help=f"a test without a mark fails that computes for more than {QUICK:g} seconds",
    )


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[None]:
    """What a fixture of one test takes is the test's; what several share is nobody's."""
    global _unblamed
    begun = _computed()
    try:
        return (yield)
    finally:
        spent = _computed() - begun
        _unblamed += spent
        if fixturedef.scope == "function":
            request.node.stash[_SECONDS] = request.node.stash.get(_SECONDS, 0.0) + spent


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_LOADED] = len(sys.modules)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    begun = _computed()
    result = yield
    seconds = item.stash.get(_SECONDS, 0.0) + _computed() - begun
    exempt = any(item.get_closest_marker(name) for name in MARKS) or (
        len(sys.modules) - item.stash[_LOADED] >= LIBRARY
    )
    item.user_properties += [("seconds", round(seconds, 2)), ("exempt", exempt)]
    if item.config.getoption("--hold-quick") and not exempt and seconds > QUICK:
        pytest.fail(
            f"it computes for {seconds:.1f} s, and without a mark {QUICK:g} are allowed: make it"
            " cheaper, or mark it slow",
            pytrace=False,
        )
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The tests that ought to have a mark."""
    for report in terminalreporter.stats.get("passed", []):
        told = dict(report.user_properties)
        if not told["exempt"] and told["seconds"] > QUICK:
            terminalreporter.write_line(
                f"without a mark, and computes for {told['seconds']:.1f} s: {report.nodeid}"
            )


def needs(*libraries: str) -> pytest.MarkDecorator:
    """Skips where one of these is not installed, without importing it."""
    lacking = [name for name in libraries if find_spec(name) is None]
    return pytest.mark.skipif(bool(lacking), reason=f"needs {', '.join(lacking)}")


class Lazily:
    """A library, imported when something of it is asked for: collecting tests needs none of it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, member: str) -> Any:
        if member.startswith(("_", "pytest")):  # by which pytest looks at all that a module has
            raise AttributeError(member)
        return getattr(import_module(self._name), member)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name` of this session, which `make` fills in the first worker that asks for
    it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    made = Path(f"{folder}.made")
    with FileLock(f"{folder}.lock"):
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cifar10() -> str:
    """The folder of the real CIFAR-10 in parquet files: $PFEDLORA_DATA, or shared/data/cifar10 in
    the folder that holds the checkout."""
    folder = Path(os.environ.get("PFEDLORA_DATA", ROOT.parent / "shared" / "data" / "cifar10"))
    if not (folder / "train.parquet").exists():
        pytest.skip(
            f"the real CIFAR-10 is not at {folder}; set PFEDLORA_DATA to the folder of"
            " train.parquet and test.parquet"
        )
    return str(folder)


def keys_in(text: str) -> dict[str, Any]:
    """Keys as the command takes them: `clients=5 dp.clip=1`."""
    from pfedlora_flwr.config import parse_overrides

    return parse_overrides(text.split())


def key_words(keys: Mapping[str, object]) -> list[str]:
    """Keys as the command takes them."""
    return [word for name, value in keys.items() for word in ("-o", f"{name}={value}")]


def named_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys by their own names: an underscore stands for a hyphen, two for a dot."""
    return {name.replace("__", ".").replace("_", "-"): value for name, value in keys.items()}


def result_of(output: Path) -> dict[str, Any]:
    """What a run in this directory came to."""
    return json.loads((output / "result.json").read_text())


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    stdout: str
    stderr: str
    output: Path

    @property
    def result(self) -> dict[str, Any]:
        return result_of(self.output)

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

    def run(self, name: str, *words: str, timeout: float = 400) -> Done:
        """`pfedlora run -o output=NAME WORDS…`, to its end."""
        output = self.folder / name
        return self(*("run", "-o", f"output={output}", *words), timeout=timeout, output=output)

    def __call__(self, *words: str, timeout: float = 400, output: Path | None = None) -> Done:
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
        from pfedlora_flwr.launch.processes import is_running

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
    """A run by the local engine in the test's own process. One that fails has the code 1; what is
    refused before anything has started is raised."""
    import pfedlora_flwr
    from pfedlora_flwr.errors import UserError

    try:
        given: dict[str, Any] = {**keys, "output": output}
        result = pfedlora_flwr.run(progress=False, **given).result
    except UserError as error:
        if not str(error).startswith("the run failed"):
            raise
        result = result_of(output)
    return Done(0 if result["status"] == "completed" else 1, "", result["error"] or "", output)


@pytest.fixture(scope="session")
def shared_cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """One folder of runs for tests that compare runs with each other."""
    yield from _cli(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A small completed run on the digits, for tests that use its models and leave it as it is:
    three clients, CNN-1 to CNN-3."""
    keys = {
        "clients": "3",
        "partition.kind": "iid",
        "batch-size": "16",
        "rounds": "3",
        "observers": "tensorboard",
    }

    def train(folder: Path) -> None:
        with contextmanager(_cli)(folder) as cli:
            done = cli.run("trained", *key_words(keys), "--engine", "local")
        assert done.code == 0, done.stderr
        (folder / "stdout").write_text(done.stdout)

    folder = made_once(tmp_path_factory, "trained", train)
    return Done(0, (folder / "stdout").read_text(), "", folder / "trained")


Call = Callable[..., tuple[int, str, str]]
"""`pfedlora WORDS…`: exit code, stdout, stderr."""


@pytest.fixture
def pfedlora(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Call:
    """The command in this process, in an empty folder."""
    from pfedlora_flwr import cli as command_line

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
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison's runs are done in this process, as from Python: each worker would import for
    seconds. Workers: tests/launch/test_worker.py, and the killed ones of tests/test_compare.py."""
    from pfedlora_flwr.ops import run_queue

    def in_this_process(runs: run_queue.Runs, engine: str) -> object:
        return run_queue._one_by_one(runs, partial(run_queue.executing.execute, engine=engine))

    monkeypatch.setattr(run_queue, "_in_workers", in_this_process)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have their tables and texts alone. Figures: tests/report/test_write.py."""
    from pfedlora_flwr.report import write

    monkeypatch.setattr(write, "_draw", lambda study, judged, output: ([], []))


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    yield from _cli(tmp_path)


def _cli(folder: Path) -> Iterator[Cli]:
    from pfedlora_flwr.launch.processes import MARKER, stop_marked

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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium. Skipped where it or Playwright is not installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`")
    path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
    )
    if not path:
        pytest.skip("needs Chromium (`apt-get install chromium`)")
    with playwright.sync_playwright() as found:
        chromium = found.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def axe() -> Callable[[Any], list[str]]:
    """What axe has against a page, by WCAG 2.2 A and AA and its best practice."""
    of = "axe_playwright_python.sync_playwright"
    checker = pytest.importorskip(of, reason="needs `pip install axe-playwright-python`").Axe()
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

    def found(page: Any) -> list[str]:
        response = checker.run(page, options={"runOnly": rules}).response
        return [f"{v['id']}: {v['nodes'][0]['html']}" for v in response["violations"]]

    return found
