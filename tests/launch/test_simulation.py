"""A private SuperLink: asked without a proxy, stopped from any thread; a lost log loses no run."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pfedlora_flwr.config import run_config
from pfedlora_flwr.launch import flower, simulation
from pfedlora_flwr.launch.flower import LaunchError
from pfedlora_flwr.launch.processes import MARKER
from pfedlora_flwr.launch.resources import Resources
from pfedlora_flwr.launch.simulation import Simulation
from pfedlora_flwr.runs.directory import RunDirectory

NOWHERE = "http://127.0.0.1:9"
"""Nothing listens on it."""


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on hosts behind a proxy that say nothing of this machine."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, NOWHERE)


@pytest.fixture
def health() -> Iterator[int]:
    """The port of a server that is healthy."""

    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def private(folder: Path, port: int = 0) -> Simulation:
    config = run_config({"output": str(folder / "run"), "dataset": "synthetic:60"})
    run = RunDirectory(folder / "run")
    run.logs.mkdir(parents=True)
    return Simulation(config, run, Resources(1, 1), port)


@pytest.mark.slow
@pytest.mark.usefixtures("proxied")
def test_a_proxy_is_not_asked_for_this_machine(
    tmp_path: Path, health: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert private(tmp_path, health)._healthy()
    assert flower.environment()["no_proxy"] == "127.0.0.1,localhost"
    monkeypatch.setenv("NO_PROXY", ".example.org")  # the small one comes first where both are set
    for name in ("no_proxy", "NO_PROXY"):
        assert flower.environment()[name] == ".example.org,127.0.0.1,localhost"
    monkeypatch.setenv("no_proxy", "*")
    assert flower.environment()["no_proxy"] == "*"


def test_outside_the_main_thread_everything_is_stopped_too(tmp_path: Path) -> None:
    """As from a notebook's worker, or a web server."""
    kept, errors = private(tmp_path), list[BaseException]()
    stay = [sys.executable, "-c", "import time; time.sleep(60)"]

    def run() -> None:
        try:
            with kept:
                kept._superlink = subprocess.Popen(stay, env={MARKER: kept.marker})
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=60)
    assert not errors
    assert kept._superlink is not None
    assert kept._superlink.poll() is not None
    assert not kept._home.exists()
    assert not kept.directory.launch_file.exists()


def test_a_full_disk_takes_the_log_and_not_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = private(tmp_path)
    monkeypatch.setattr(simulation.FlwrCommand, "log", lambda *_: "said")
    monkeypatch.setattr(Simulation, "_alive", lambda _: True)
    with kept:
        kept._run_id = "1"
        monkeypatch.setattr(Path, "write_text", lambda *_, **__: full())
        kept.save_log()
        with pytest.raises(LaunchError, match="`flwr run` failed"):
            raise kept._flwr._failed("run", "no")


def full() -> None:
    raise OSError(28, "No space left on device")
