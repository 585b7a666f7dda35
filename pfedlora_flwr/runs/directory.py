"""A run's directory: one writer, `config.yaml`, a line a round, a line a client's turn, and `result.json` at the end."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from pfedlora_flwr.config import from_flat, parse_overrides
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.runs.checkpoint import Checkpoints
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.keys import UserError
from pfedlora_flwr.rng import derive

Row = dict[str, Any]
_DYING = 60.0
"""Seconds that a server may need to notice that its SuperLink was restarted, and to let go of its run."""
_OURS = {"config.yaml", "rounds.jsonl", "clients.jsonl", "result.json", "server", "clients", "logs", "report", "events"}


class RunDirectory:
    """The files of one run. `open` locks it; a second writer is turned away."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "server")
        self._lock = FileLock(path / "server" / "lock")

    @property
    def token(self) -> str:
        """Names this run on a node's disk, where the models of several runs may lie side by side."""
        return (self.path / "server" / "token").read_text().strip()

    @property
    def partition(self) -> str | None:
        """The fingerprint of the partition, once the nodes have told it."""
        path = self.path / "server" / "partition"
        return path.read_text().strip() if path.exists() else None

    def write_partition(self, fingerprint: str) -> None:
        """Keeps the fingerprint for the result. Raises UserError when a resumed run's data is not what it was."""
        if self.partition not in (None, "own", fingerprint):
            raise UserError(f"the nodes' data or partition is not what the run in {str(self.path)!r} began with")
        write_atomically(self.path / "server" / "partition", fingerprint.encode())

    def open(self, experiment: Experiment) -> None:
        """Creates the directory, or takes up the run in it. Raises UserError when it is in use, foreign or not to be replaced."""
        self.check_free(experiment)
        (self.path / "server").mkdir(parents=True, exist_ok=True)
        self._acquire(_DYING if experiment.resume else 0.0)
        if not experiment.resume:
            self._clear()
            token = f"{derive(time.time_ns(), str(self.path)):016x}"
            write_atomically(self.path / "server" / "token", token.encode())
            write_config(self.path / "config.yaml", experiment)
        (self.path / "result.json").unlink(missing_ok=True)

    def close(self) -> None:
        self._lock.release()

    def check_free(self, experiment: Experiment) -> None:
        """Raises UserError unless the run may start (or resume) here. Changes nothing."""
        config = self.path / "config.yaml"
        if experiment.resume:
            if not config.exists():
                raise UserError(f"output {str(self.path)!r} holds no run to resume")
            different = differences(from_flat(saved_keys(config)), experiment)
            if different:
                raise UserError(f"output {str(self.path)!r} holds another Experiment ({'; '.join(different)}); resume it as it was")
            return
        inside = self.path.iterdir() if self.path.is_dir() else iter(())
        found = {p.name for p in inside if not p.match(".*.tmp")} or ({"a file"} if self.path.is_file() else set())
        if experiment.overwrite and not found <= _OURS:
            raise UserError(f"output {str(self.path)!r} is not a run's directory: it is not overwritten")
        if not experiment.overwrite and not found <= {"logs", "result.json"}:  # these two: a run that never began
            raise UserError(f"output {str(self.path)!r} exists; continue it with --resume, replace it with --overwrite, or choose another")

    def check_unlocked(self) -> None:
        """Raises UserError when a running run holds this directory. Changes nothing."""
        if (self.path / "server" / "lock").exists():
            self._acquire()
            self._lock.release()

    def _acquire(self, patience: float = 0.0) -> None:
        try:
            self._lock.acquire(timeout=patience)
        except Timeout:
            raise UserError(f"output {str(self.path)!r} is in use by a running run; wait for it, or choose another output") from None

    def rows(self, name: str) -> list[Row]:
        """The lines of `rounds.jsonl` or `clients.jsonl`; a last line that was cut off is left out."""
        return read_rows(self.path / name)

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)

    def rewind(self, round: int) -> None:
        """Drops the lines of rounds after `round`: they were written before a checkpoint that never was."""
        for name in ("rounds.jsonl", "clients.jsonl"):
            kept = [row for row in self.rows(name) if row["round"] <= round]
            write_atomically(self.path / name, "".join(json.dumps(row) + "\n" for row in kept).encode())

    def progress(self, **what: Any) -> None:
        """What the run is doing now, for whoever watches."""
        now = json.dumps({"pid": os.getpid(), "time": time.time(), **what})
        write_atomically(self.path / "server" / "progress.json", now.encode(), durable=False)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        write_atomically(self.path / name, (json.dumps(content, indent=2) + "\n").encode())

    def _clear(self) -> None:
        for name in ("clients", "report", "events"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for file in (
            *self.path.glob("*.jsonl"),
            *self.path.glob("result.json"),
            *self.path.glob("server/*.*"),
            *self.path.glob("server/partition"),
            *self.path.glob("config.yaml"),
            *self.path.glob(".*.tmp"),
        ):
            file.unlink()


def read_rows(path: Path) -> list[Row]:
    """The whole lines of a .jsonl file; none where there is no file."""
    rows = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return rows


def write_config(path: Path, experiment: Experiment) -> None:
    """The resolved configuration, with what made the run: versions and the git commit."""
    about = {"versions": versions(), "git-commit": _git_commit()}
    content = {**experiment.flat(), "about": about | {"fingerprint": experiment.fingerprint()}}
    write_atomically(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode())


def versions() -> dict[str, str | None]:
    """The versions of what makes a result."""
    packages = ("pfedlora-flwr", "flwr", "torch", "numpy", "ray")
    return {p: _version(p) for p in packages} | {"python": platform.python_version()}


def saved_keys(path: Path) -> Row:
    """The configuration keys of a run's config.yaml, as `Experiment.from_flat` takes them."""
    try:
        return {k: v for k, v in yaml.safe_load(path.read_text(encoding="utf-8")).items() if k != "about"}
    except (OSError, yaml.YAMLError, AttributeError):
        raise UserError(f"{path} cannot be read as a run's configuration") from None


def resumed(output: Path, overrides: Iterable[str]) -> Experiment:
    """The Experiment of the run in `output`, with the overrides of this call. Raises UserError when there is none."""
    config = output.expanduser() / "config.yaml"
    if not config.exists():
        raise UserError(f"output {str(output)!r} holds no run to resume")
    return from_flat(saved_keys(config) | {"overwrite": False} | parse_overrides(overrides))


def differences(one: Experiment, other: Experiment) -> list[str]:
    """The keys that can change a result and differ, as `key: was → is`."""
    a, b = ({name: k.text(value) for name, (k, value) in e.keys().items() if k.result} for e in (one, other))
    return [f"{name}: {a.get(name)!r} → {b.get(name)!r}" for name in a | b if a.get(name) != b.get(name)]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ModuleNotFoundError:
        return None


def _git_commit() -> str | None:
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
