"""Flower's own commands: their location, their environment, the app that they get, and one way to
call `flwr`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from pfedlora_flwr.errors.log_lines import exception_line, lines_of
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.version import DESCRIPTION, __version__

_HERE = "127.0.0.1,localhost"
_PROXIES = "http_proxy", "https_proxy", "all_proxy"
_COLOURED = "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"
"""Variables that would colour what Flower writes for us to read."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",
    "SPT_NOENV": "1",
    "PYTHONIOENCODING": "utf-8",
}
"""Nothing calls out, Flower builds no environment of its own, clients train at the priority of any
other program, and Ray's agents do not write their titles over their environment, in which we look
for our marker."""
_CALL, _WAIT = 60.0, 0.1
"""Seconds in which a call of `flwr` must be answered, and between two looks whether it is."""
COMPONENTS = """[tool.flwr.app]
publisher = "pfedlora"

[tool.flwr.app.components]
serverapp = "pfedlora_flwr.server_app:app"
clientapp = "pfedlora_flwr.client_app:app"
"""
"""Whose app this is, and where Flower finds its two sides; `make docs` writes it to pyproject."""
APP = "pfedlora-flwr"
"""The app's name."""
_APP = """[project]
name = "pfedlora-flwr"
version = {version}
description = {description}
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

{components}
[tool.flwr.app.config]
{config}
"""


class LaunchError(RuntimeError):
    """A run could not be started or was lost; the text, one line, says what its processes said
    last."""


class FlwrCommand:
    """The `flwr` command for one SuperLink. What it does raises LaunchError when Flower refuses or
    does not answer.

    superlink: a connection in Flower's config.toml. log: the file that keeps what a call said that
    failed."""

    def __init__(self, superlink: str, environment: Mapping[str, str], log: Path) -> None:
        self.superlink = superlink
        self._environment = environment
        self._log = log

    def run(self, app: Path, *options: str) -> str:
        """Submits the app in this folder; the run's id."""
        return str(self._asked("run", str(app), self.superlink, *options)["run-id"])

    def status(self, run_id: str) -> str:
        """What Flower says of the run, such as `finished:completed`."""
        runs = self._asked("list", self.superlink, "--run-id", run_id).get("runs")
        if not runs:
            raise LaunchError(f"Flower does not know run {run_id}")
        return str(runs[0]["status"])

    def runs(self) -> list[dict[str, Any]]:
        """What Flower says of each run that the SuperLink knows."""
        return list(self._asked("list", self.superlink).get("runs", ()))

    def stop(self, run_id: str) -> None:
        """Stops the run."""
        self._asked("stop", run_id, self.superlink)

    def log(self, run_id: str) -> str:
        """What the run's processes have logged so far."""
        return self._call("log", run_id, self.superlink, "--show")

    def stream(self, run_id: str, log: BinaryIO) -> subprocess.Popen[bytes]:
        """A process that writes the run's log, from its beginning, to `log` until the run ends or
        the connection breaks."""
        return subprocess.Popen(
            [tool("flwr"), "log", run_id, self.superlink, "--stream"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.DEVNULL,
        )

    def _asked(self, *words: str) -> dict[str, Any]:
        """What the call answers in JSON. Flower says there, not by the exit code, that a call has
        failed."""
        said = self._call(*words, "--format", "json")
        try:
            answer: dict[str, Any] = json.loads(said)
        except ValueError:
            raise self._failed(words[0], said) from None
        if not answer.get("success", True):
            raise self._failed(words[0], str(answer.get("error-message")))
        return answer

    def _call(self, *words: str) -> str:
        command, pipe = [tool("flwr"), *words], subprocess.PIPE
        with subprocess.Popen(  # in a session of its own: Ctrl-C reaches us alone
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        ) as call:
            try:
                answer = _answer(call)
            finally:
                call.kill()  # one that has ended is left alone
        if answer is None:
            raise LaunchError(
                f"`flwr {words[0]}`: the SuperLink {self.superlink!r} did not answer within"
                f" {_CALL:g} s"
            )
        said, errors = answer
        if call.returncode:
            raise self._failed(words[0], said + errors)
        return said

    def _failed(self, word: str, said: str) -> LaunchError:
        with contextlib.suppress(OSError):  # a full disk: the error says it, too
            self._log.write_text(said, encoding="utf-8")
        return LaunchError(f"`flwr {word}` failed: {last_line(self._log)}")


def tool(name: str) -> str:
    """The path of a command that Flower installs: of this Python environment, else on the PATH.
    Raises LaunchError when it is nowhere."""
    found = shutil.which(name, path=search_path())
    if found is None:
        where = f"neither beside {sys.executable} nor on the PATH"
        raise LaunchError(
            f'the command `{name}` is {where}; pip install "flwr[simulation]" brings it'
        )
    return found


def search_path() -> str:
    """The PATH of the processes that we start, which look for Flower's commands there: where pip
    puts those of this Python comes first."""
    folders = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    if site.ENABLE_USER_SITE:  # pip install --user
        folders.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    return os.pathsep.join(dict.fromkeys([*folders, os.environ.get("PATH", os.defpath)]))


def environment(*, here: bool = False, **own: str) -> dict[str, str]:
    """What our processes inherit: this process's environment, quiet, with Flower's commands on the
    PATH, this machine asked without a proxy, and `own`.

    here: whether they speak with this machine alone: a proxy that their HTTP library cannot use,
    and so refuses to start with, is left out."""
    left = {
        name: value
        for name, value in os.environ.items()
        if name not in _COLOURED and not (here and name.lower() in _PROXIES and not _usable(value))
    }
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    apart = given if given.strip() == "*" else ",".join(filter(None, [given, _HERE]))
    return left | QUIET | {"no_proxy": apart, "NO_PROXY": apart} | {"PATH": search_path()} | own


def _usable(proxy: str) -> bool:
    """Whether httpx, by which Flower speaks, takes this proxy."""
    scheme = proxy.partition("://")[0].lower() if "://" in proxy else "http"
    socks = ("socks5", "socks5h") if find_spec("socksio") else ()
    return scheme in ("http", "https", *socks)


def write_app(folder: Path, config: RunConfig) -> Path:
    """A Flower app that holds the configuration alone: the code is what is installed where it runs.
    Returns its new folder."""
    folder.mkdir()
    about = {"version": __version__, "description": DESCRIPTION}
    keys = "\n".join(f"{_toml(name)} = {_toml(value)}" for name, value in config.flat().items())
    text = _APP.format(
        **{name: _toml(value) for name, value in about.items()}, components=COMPONENTS, config=keys
    )
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def last_line(log: Path, found: Callable[[str], str | None] = exception_line) -> str:
    """The last line of a log that says something, before any other what `found` finds: an
    exception's."""
    try:
        text = log.read_text("utf-8", errors="replace")
    except OSError:
        text = ""
    line = found(text) or next(reversed(lines_of(text)), None)
    return f"{line[:300]} (see {log})" if line else f"nothing in {log}"


def _answer(call: subprocess.Popen[str]) -> tuple[str, str] | None:
    """What the call wrote to stdout and stderr, or None after `_CALL` seconds. Asked in short
    waits, since an interrupted one still lasts a quarter of a second when it has no end."""
    deadline = time.monotonic() + _CALL
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return call.communicate(timeout=_WAIT)
    return None


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
