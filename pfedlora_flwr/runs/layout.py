"""A run's directory: the names of its files, and their readers. `docs/output.md` describes each
file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from pfedlora_flwr.config import parse, run_config
from pfedlora_flwr.data.parts import OF_RUN
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.rules import FEATURES
from pfedlora_flwr.files import is_locked
from pfedlora_flwr.keys import AUTO
from pfedlora_flwr.runs.checkpoint import Checkpoints, ServerState, warn_once
from pfedlora_flwr.runs.lines import Watched
from pfedlora_flwr.runs.provenance import read_config
from pfedlora_flwr.runs.records import read_json, read_result, read_rounds, read_visits
from pfedlora_flwr.runs.rows import (
    FailedVisitRow,
    Origin,
    Result,
    RoundRow,
    StartedFrom,
    VisitRow,
)
from pfedlora_flwr.runs.standing import Standing
from pfedlora_flwr.runs.store import ClientStore
from pfedlora_flwr.runs.uploads import UPLOADS, Uploads

Row = dict[str, Any]
FORMAT = 3
"""Of the files that users parse: config.yaml, rounds.jsonl, clients.jsonl, result.json. Fields are
added to it and none renamed."""
FILES: tuple[str, ...] = (
    "config.yaml",
    "result.json",
    "rounds.jsonl",
    "clients.jsonl",
)
CONFIG, RESULT, ROUNDS, CLIENTS = FILES
LINES = ROUNDS, CLIENTS, *(name for feature in FEATURES for name in feature.lines)
"""The files that have a line for each round, visit or other event."""
OF_FEATURES = tuple(name for feature in FEATURES for name in feature.files)
FILES += LINES[2:] + OF_FEATURES

HASHES = "hashes.json"
"""In `server`: SHA-256 of the files of a run that has ended, by name."""
_FOLDERS = ("server", "clients", "logs", "rows", "source")
METRICS = "metrics.prom"
OBSERVED = ("mlflow.db", "mlflow.db-journal", "mlflow", "mlflow-id", "wandb", "wandb-id", METRICS)
"""What observers leave in a run's directory, beside TensorBoard's folder."""
FOREIGN = (".*.tmp", ".DS_Store", "._*", ".nfs*")
"""What a write leaves that was cut off, and what systems put into any folder."""


class RunFiles:
    """The files of one run: their names, and their readers. Nothing is changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG
        self.result_file = path / RESULT
        self.findings = self.result_file, *(path / name for name in OF_FEATURES)  # of rounds so far
        self.server = path / "server"
        self.states = self.server / "states"
        self.clients, self.logs = path / "clients", path / "logs"
        self.rows = path / "rows"
        self.report, self.events, self.source = path / "report", path / "events", path / "source"
        self.metrics = path / METRICS
        self.traceback_file = self.logs / "traceback.txt"
        self.launch_file, self.launch_lock = self.logs / "launch.json", self.logs / "launch.lock"
        self.submitted_file = self.logs / "submitted"
        self.numbers_file = self.server / "numbers.json"
        self.unmasking_file = self.server / "unmasking.json"
        self.sites_file = self.server / "sites.json"
        self.origins_file = self.server / "origins.json"
        self.start_file = self.server / "start.json"
        self.parts_file = path / OF_RUN
        self.owners_file = self.server / "owners.json"
        self.hashes_file = self.server / HASHES
        self.checkpoints, self.uploads = Checkpoints(self.server), Uploads(path / UPLOADS)
        self._rounds, self._clients = path / ROUNDS, path / CLIENTS
        self.token_file = self.server / "token"
        self._partition = self.server / "partition"
        self._progress = self.server / "progress.json"
        self.lock_file = self.server / "lock"

    @property
    def holds_run(self) -> bool:
        """Whether a run was ever begun here. Raises UserError for what is no file in a file's
        place: a pipe would be waited for."""
        check_forms(self.path)
        return self.config.exists()

    def experiment(self) -> Experiment:
        """What is trained here. Raises UserError when its configuration cannot be read."""
        return self.run_config().experiment

    def run_config(self) -> RunConfig:
        """All its keys. Raises UserError when its configuration cannot be read.

        Its `min-clients` may be above the clients that have not left: a start checks its own."""
        saved = self.saved_keys()
        wanted = {"min-clients": saved.get("min-clients", AUTO)}
        try:
            config = run_config({**saved, "min-clients": AUTO})
            return config.executed(min_clients=parse(wanted)["min-clients"])
        except UserError as error:
            raise type(error)(f"{self.config}: {error}") from error.__cause__

    @property
    def is_held(self) -> bool:
        """Whether a launcher or a server has this directory now. Raises OSError where a lock cannot
        be read."""
        return any(is_locked(lock) for lock in (self.launch_lock, self.lock_file))

    def saved_keys(self) -> Row:
        """The configuration as flat keys.

        Raises UserError when it cannot be read, or is of a format that is no longer read."""
        content, about = self.saved()
        if (found := about.get("format", 1)) != FORMAT:
            raise UserError(
                f"{self.config} has format {found}, and this version reads {FORMAT}: another"
                f" version made this run; run it again"
            )
        return content

    def saved(self) -> tuple[Row, Row]:
        """The configuration's keys as they stand, and what it says of the run's making. Raises
        UserError when it cannot be read."""
        check_forms(self.path)
        try:
            content = dict(read_config(self.config))
            return content, dict(content.pop("about"))
        except OSError as error:
            raise UserError(f"{self.config} cannot be read: {error.strerror}") from None
        except (yaml.YAMLError, AttributeError, TypeError, ValueError, KeyError):
            raise UserError(
                f"{self.config} cannot be read as a run's configuration; put it back from a copy,"
                " or run again with overwrite=true"
            ) from None

    def result(self) -> Result | None:
        """What the run came to, or None: it goes on, was killed, or never began. Raises UserError
        for a file that is no result."""
        return read_result(self.result_file, FORMAT, self.hashes_file)

    def rounds(self) -> list[RoundRow]:
        """The lines of its rounds; a last line that was cut off is left out. Raises UserError if
        another one is damaged."""
        return list(read_rounds(self._rounds))

    def visits(self) -> Iterator[VisitRow | FailedVisitRow]:
        """The lines of its clients' visits, those that failed included."""
        return read_visits(self._clients)

    def watched(self) -> Watched:
        """Its rounds, to look at while it goes on."""
        return Watched(self._rounds)

    def standing(self) -> Standing:
        """What its lines say of its clients, to look at while it goes on."""
        return Standing(self._rounds, self._clients)

    def doing(self) -> Row | None:
        """What its server wrote last by `progress`: the fields of `Progress`."""
        return read_json(self._progress)

    @property
    def token(self) -> str:
        """Names this run on a node's disk, where the models of several runs may lie side by side.
        Raises OSError when there is none."""
        return _word(self.token_file)

    def last_round(self) -> int:
        """The round after which a resumed run goes on; 0 also if none is done."""
        state = self.checkpoints.load()
        return state.round if state else 0

    def latest(self) -> ServerState | None:
        """The newest whole checkpoint, for who reads what the run came to: a warning tells where
        the run has done later rounds."""
        done = self._done()  # before it is loaded: the run may go on
        state = self.checkpoints.load()
        if state and state.round < done:
            told = f"{self.path} is read as of round {state.round}, and {done} rounds are done"
            warn_once(self.path, f"{told}: a newer checkpoint in {self.server} is gone or damaged")
        return state

    def _done(self) -> int:
        """The last round that has a checkpoint, by what is told of the run: a round's line is
        written before its checkpoint, a result after all of them."""
        with suppress(UserError):  # a damaged file tells nothing
            if (result := self.result()) and "rounds" in result:
                return result["rounds"]
            return max((row["round"] for row in self.rounds()), default=0) - 1
        return 0

    def origins(self) -> list[Origin]:
        """The runs whose sites' models it goes on from, each up to a round."""
        return read_json(self.origins_file) or []

    def started_from(self) -> StartedFrom | None:
        """What it began from, by `start-from`."""
        return read_json(self.start_file)

    @property
    def begun_after(self) -> int:
        """The round of an earlier run behind which its own rounds go on; 0: there is none."""
        started = self.started_from()
        return started["round"] if started else 0

    def owners(self) -> list[str]:
        """Whose samples its simulated clients have, by client, where the data says it."""
        return read_json(self.owners_file) or []

    @property
    def partition(self) -> str | None:
        """The fingerprint of the partition, once the nodes have told it."""
        return _word(self._partition) if self._partition.exists() else None

    def server_store(self, client: int) -> ClientStore:
        """Where the server keeps a client's own state, under `sharing=none`."""
        return ClientStore(self.states / str(client))

    def right_rows(self, client: int) -> Path:
        """Where a simulated client keeps which test rows it had right."""
        return self.rows / f"{client}.jsonl"

    def client_store(self, client: int) -> ClientStore:
        """Where a simulated client keeps its model."""
        return ClientStore(self.clients / str(client))


def check_forms(path: Path) -> None:
    """Raises UserError for what is no regular file where a run has files, and no folder where it
    has folders."""
    of_clients, of_states = path / "clients", path / "server" / "states"
    for folder in (path, path / "server", path / "rows", *_within(of_clients), *_within(of_states)):
        with suppress(OSError), os.scandir(folder) as there:
            for one in there:
                place, known = Path(one.path), folder != path or one.name in FILES
                if os.path.isdir(one):
                    wrong = known and place not in (of_clients, of_states)
                else:
                    wrong = not os.path.isfile(one) or (folder == path and one.name in _FOLDERS)
                # a run that goes on may have removed it since
                if wrong and os.path.lexists(one) and not one.name.startswith("."):
                    form = "folder" if one.name in _FOLDERS else "regular file"
                    raise UserError(f"{place} is no {form}: restore it")


def _within(folder: Path) -> Iterator[Path]:
    """The folders in a folder, where it is one."""
    with suppress(OSError), os.scandir(folder) as there:
        yield from (Path(one.path) for one in there if one.is_dir())


def _word(file: Path) -> str:
    """The word that a file holds. Raises UserError for other bytes, OSError as it may."""
    try:
        return file.read_text("ascii").strip()
    except UnicodeDecodeError:
        raise UserError(f"{file} is damaged: restore it") from None


def is_observers(file: Path) -> bool:
    """Whether it lies in what an observer left in a run's directory."""
    return any(p.name in OBSERVED and RunFiles(p.parent).holds_run for p in file.parents)


def origin_of(version: int, origins: Iterable[Origin]) -> str | None:
    """The name of the other run that a model of this version is of, if it is of one of these."""
    held = (o["token"] for o in origins if version <= o["round"])
    return next(held, None) if version else None
