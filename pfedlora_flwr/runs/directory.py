"""The life cycle of a run's directory: begin, lock, write, resume, extend, clear. `layout` names
its files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import yaml
from filelock import FileLock, Timeout

from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.data.local import OWN
from pfedlora_flwr.data.parts import Parts
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.records import OUTLIVING, RECORDS, are_void
from pfedlora_flwr.files import (
    file_sha256,
    is_locked,
    make_folder,
    remove_folder,
    stamp_of,
    write_atomically,
)
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.layout import (
    CONFIG,
    FORMAT,
    LINES,
    OBSERVED,
    Row,
    RunFiles,
    is_observers,
)
from pfedlora_flwr.runs.lines import append_rows, write_rows
from pfedlora_flwr.runs.provenance import git_commit, machine, versions
from pfedlora_flwr.runs.records import check_whole, read_rounds, read_visits
from pfedlora_flwr.runs.rows import (
    FailedVisitRow,
    Origin,
    Phase,
    Progress,
    Result,
    RoundRow,
    VisitRow,
    with_evaluation,
    without_evaluation,
)


class RunDirectory(RunFiles):
    """A run's files and what becomes of them. `lock` is for its server; a second one is turned
    away."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lock = FileLock(self.lock_file)

    # Taking it up and letting it go

    def lock(self, patience: float) -> None:
        """Has the directory for this process alone, and drops what was found of earlier rounds.
        Raises UserError when it is in use for so many seconds."""
        make_folder(self.server)
        try:
            self._lock.acquire(timeout=patience)
        except Timeout:
            raise in_use(self.path) from None
        for file in self.findings:
            file.unlink(missing_ok=True)

    def clear(self, stays: Mapping[str, bytes | None]) -> None:
        """Removes the run that is here but for its logs. stays: what does of files in `server`."""
        for name, blob in stays.items():
            if blob is not None:
                write_atomically(self.server / name, blob)
            else:
                (self.server / name).unlink(missing_ok=True)
        self._clear()
        self.traceback_file.unlink(missing_ok=True)

    def close(self) -> None:
        self._lock.release()

    def clear_void(self) -> None:
        """Removes what a run left that failed before its first round: there is nothing to resume or
        to keep."""
        if self.is_void:
            self._clear()
            if not any((self.server / name).exists() for name in OUTLIVING):
                remove_folder(self.server)
                return
            for file in self.server.iterdir():
                if file.name not in OUTLIVING:
                    file.unlink()

    def check_unlocked(self, patience: float = 0.0) -> None:
        """Raises UserError when a running run holds this directory for so many seconds. Changes
        nothing."""
        if is_locked(self.lock_file, patience):
            raise in_use(self.path)

    def check_resumable(self) -> None:
        """Raises UserError when no run was begun here."""
        if not self.holds_run:
            raise UserError(f"output {str(self.path)!r} holds no run to resume: it has no {CONFIG}")

    def check_whole(self) -> None:
        """Raises UserError when files are gone that the run needs to go on, or that what it has
        done is told in."""
        check_whole(self.checkpoints, self.rounds(), self.visits(), self.path, self.begun_after)
        state = self.checkpoints.load()
        e = self.experiment() if state and state.versions else None
        if e:
            for record in RECORDS:
                record.check_whole(self, e)
        if self.checkpoints.rounds() and not self.token_file.exists():
            raise UserError(
                f"{self.token_file} is missing, by which nodes recognise the run; restore it, or"
                " start again with overwrite=true"
            )

    def check_partition(self, fingerprint: str) -> None:
        """Raises UserError when a resumed run's data is not what it was."""
        if self.partition not in (None, OWN, fingerprint):
            raise UserError(
                f"the data or its partition is not what the run in {str(self.path)!r} began with"
            )

    def is_completed(self, experiment: Experiment) -> bool:
        """Whether all rounds of the Experiment are done, and told, or the run ended before."""
        result = self.result()
        return (
            result is not None
            and result["status"] == "completed"
            and (result["rounds"] == experiment.rounds or "ended_early" in result)
        )

    # Writing

    def write_config(
        self,
        config: RunConfig,
        history: Sequence[Row] = (),
        last_round: int = 0,
        was: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """The resolved configuration, with what made the run: versions, the git commit, and the
        history of its starts, this one added.

        was: the former values of keys of the Execution that this start has changed."""
        experiment = config.experiment
        commit, now = git_commit(), datetime.now(UTC).isoformat(timespec="milliseconds")
        begun = {
            "date": now,
            "git-commit": commit,
            "rounds": experiment.rounds,
            "clients": experiment.clients,
            "after-round": last_round,
            **({"was": dict(was)} if was else {}),
        }
        about = {
            "format": FORMAT,
            "versions": versions(),
            "git-commit": commit,
            "fingerprint": experiment.fingerprint(),
        }
        about |= {"machine": machine(experiment.device), "history": [*history, begun]}
        content = yaml.safe_dump(
            {**config.flat(), "about": about}, sort_keys=False, allow_unicode=True
        )
        write_atomically(self.config, content.encode())

    def write_token(self) -> None:
        """Gives the run the name that sites know it by."""
        write_atomically(self.token_file, f"{derive(time.time_ns(), str(self.path)):016x}".encode())

    def write_origin(self, old: RunFiles, mine: Origin) -> None:
        """That it goes on from `old`, by `mine`, and from those that this one went on from, with
        its sites' numbers."""
        before = [origin for origin in old.origins() if origin["round"] < mine["round"]]
        write_atomically(self.origins_file, json.dumps([*before, mine]).encode())
        if old.numbers_file.exists():
            write_atomically(self.numbers_file, old.numbers_file.read_bytes())

    def write_result(self, result: Result) -> None:
        text = (json.dumps(result, indent=2) + "\n").encode()
        lines = [self.path / name for name in LINES]
        of_files = {file.name: file_sha256(stamp_of(file)) for file in lines if file.exists()}
        hashes = {self.result_file.name: hashlib.sha256(text).hexdigest()} | of_files
        if self.server.is_dir():
            write_atomically(self.hashes_file, json.dumps(hashes).encode())
        write_atomically(self.result_file, text)

    def write_partition(self, fingerprint: str) -> None:
        """Keeps the fingerprint for the result. Raises UserError when a resumed run's data is not
        what it was."""
        self.check_partition(fingerprint)
        write_atomically(self._partition, fingerprint.encode())

    def keep_rows(self, setup: Setup) -> None:
        """Keeps whose rows a simulation's are, and their parts, for a run that begins from it."""
        partition = setup.partition
        Parts(self.parts_file).keep_all(setup.dataset.input_hashes, partition)
        if partition.owners:
            write_atomically(self.owners_file, json.dumps(partition.owners).encode())

    def append_round(self, row: RoundRow) -> None:
        append_rows(self._rounds, [row])

    def append_visits(self, rows: Iterable[VisitRow | FailedVisitRow]) -> None:
        append_rows(self._clients, rows)

    def take_up(self, experiment: Experiment) -> ServerState | None:
        """The state that a resumed run goes on from, if there is one, and the lines up to it.

        Where the run has more rounds than it had, an evaluation that was made only for being the
        last is taken back: the lines first, so that a run that is killed here does it again."""
        state = self.checkpoints.load(set_aside=True)
        self.rewind(state.round if state else -1)
        if state and state.before_last and state.round < experiment.rounds:
            state.drop_last_evaluation()
            last = state.round
            write_rows(
                self._clients,
                (without_evaluation(v) if v["round"] == last else v for v in self.visits()),
            )
            evaluated = state.evaluated()
            write_rows(
                self._rounds,
                (with_evaluation(r, evaluated) if r["round"] == last else r for r in self.rounds()),
            )
            self.checkpoints.save(state)
        if state and experiment.is_kept(state.round):
            self.checkpoints.pin(state.round)
        return state

    def save_state(self, state: ServerState, experiment: Experiment) -> list[dict[int, int]]:
        """Writes a round's checkpoint, for good if sites join after it: then the versions of the
        clients' models in it, which stay, too."""
        self.checkpoints.save(state)
        if not experiment.is_kept(state.round):
            return []
        self.checkpoints.pin(state.round)
        return [dict(state.versions)]

    def rewind(self, round: int) -> None:
        """Drops the lines and uploads of rounds after `round`: they were written before a
        checkpoint that never was."""
        self.uploads.rewind(round)
        for path, read in ((self._rounds, read_rounds), (self._clients, read_visits)):
            write_rows(path, (row for row in read(path) if row["round"] <= round))

    def progress(self, phase: Phase, round: int = 0, done: int = 0, of: int = 0) -> None:
        """Writes what the run is doing now, for whoever watches; `Progress` has the fields."""
        now: Progress = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "time": time.time(),
            "phase": phase,
            "round": round,
            "done": done,
            "of": of,
        }
        write_atomically(self._progress, json.dumps(now).encode(), durable=False)

    def drop_models(self) -> None:
        """Removes the clients' models, and their states on the server; the lines stay."""
        for folder in (self.clients, self.states):
            remove_folder(folder)

    def trim(self) -> None:
        """Of each client's versions keeps only the current one: a completed run is not resumed."""
        state = self.checkpoints.load()
        for client, version in (state.versions if state else {}).items():
            for store in (self.client_store(client), self.server_store(client)):
                store.keep(version)

    @property
    def is_void(self) -> bool:
        """Whether what is here failed before its first round, and features keep nothing of it, or
        is what they keep of replaced runs alone."""
        there = {path.name for path in self.server.glob("*") if path != self.lock_file}
        if not self.holds_run and there and there <= OUTLIVING and are_void(self):
            return True
        try:
            last = self.result()
        except UserError:
            return False
        return (
            last is not None
            and "fingerprint" in last
            and "rounds" not in last
            and not self.checkpoints.paths()  # an earlier run's, which none has replaced yet
            and are_void(self)
        )

    def _clear(self) -> None:
        folders = self.clients, self.states, self.rows, self.report, self.events, self.source
        for folder in (*folders, self.uploads.folder):
            remove_folder(folder)
        for name in OBSERVED:  # of a link, which several runs may share, the link alone
            shutil.rmtree(self.path / name, ignore_errors=True)
        files = [
            *self.path.glob("*.jsonl"),
            self.result_file,
            *(file for file in self.server.glob("*.*") if file.name not in OUTLIVING),
            self._partition,
            self.config,
            *(self.path / name for name in OBSERVED),
        ]
        for file in (*files, *self.path.glob(".*.tmp")):
            file.unlink(missing_ok=True)


def in_use(path: Path) -> UserError:
    """The error for a directory that a running run holds."""
    return UserError(
        f"output {str(path)!r} is in use by a running run; wait for it, or choose another output"
    )


def find_runs(folder: Path) -> list[RunDirectory]:
    """The runs in a folder and below, by name."""
    return [RunDirectory(c.parent) for c in sorted(folder.rglob(CONFIG)) if not is_observers(c)]
