"""What a run has spent of its clients' privacy: how often each took part in a noised sum, on disk
before the noise is drawn.

A round that is done again, since the run was killed before its checkpoint, draws fresh noise and
counts again. What a run spent that was replaced by another in the same folder stays listed."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.dp.accountant import epsilon, finite, planned, planned_noise
from pfedlora_flwr.files import from_json, write_atomically
from pfedlora_flwr.runs.layout import RunFiles
from pfedlora_flwr.runs.rows import EarlierRun, FailedVisitRow, VisitRow

FILE = "dp.json"
"""In the `server` of a run's directory, and another one beside a client's model."""


def file_of(run: RunFiles) -> Path:
    """The record of a run."""
    return run.server / FILE


class Budget:
    """The record of one run.

    participations: by client. draws: noised sums so far. asked: whether clients were asked for what
    they noise themselves (`dp.level=record`). earlier: runs that this one replaced.
    """

    def __init__(self, path: Path | None, e: Experiment) -> None:
        """path: the record; None: of a run that is only planned. Raises UserError if the file is
        there and cannot be read."""
        saved = read(path) if path else {}
        self._path, self._e = path, e
        self._noise: float | None = saved.get("noise")
        counted = {int(k): n for k, n in saved.get("participations", {}).items()}
        self.participations = Counter[int](counted)
        self.draws: int = saved.get("draws", 0)
        self.asked: bool = saved.get("asked", False)
        self.earlier: list[EarlierRun] = saved.get("earlier", [])

    @property
    def noise(self) -> float:
        """z: of the first sum, once there was one."""
        return planned_noise(self._e) if self._noise is None else self._noise

    def epsilon(self, participations: int) -> float:
        """ε of a client that took part so often."""
        return epsilon(self.noise, participations, self._e.dp.delta)

    def beyond(self, sampled: Iterable[int]) -> float | None:
        """The largest ε after one more round of these clients, where it exceeds `dp.epsilon`."""
        return self._exceeding(max(self.participations[client] + 1 for client in sampled))

    def beyond_with(self, rounds: int, done: int) -> float | None:
        """The largest ε after round `rounds`, `done` of which are done, where it exceeds
        `dp.epsilon`."""
        return self._exceeding(self.most_with(planned(self._e.replace(rounds=rounds), done + 1)))

    def most_with(self, more: Mapping[int, int]) -> int:
        """The most participations of a client, with so many more by client."""
        return max((self.participations + Counter(more)).values(), default=0)

    def spend(self, clients: Iterable[int]) -> None:
        """Counts one more noised sum of these clients, before its noise is drawn."""
        assert self._path is not None
        self._noise = self.noise
        for client in clients:
            self.participations[client] += 1
        self.draws += 1
        record = {
            "fingerprint": self._e.fingerprint(),
            "level": self._e.dp.level,
            "delta": self._e.dp.delta,
            "noise": self._noise,
            "draws": self.draws,
            "participations": dict(sorted(self.participations.items())),
            "earlier": self.earlier,
        }
        write_atomically(self._path, json.dumps(record).encode())

    def ask(self) -> None:
        """Counts that clients are asked, before they are: they draw before the server knows."""
        if not self.asked:
            assert self._path is not None
            self.asked = True
            record = {"asked": True, "earlier": self.earlier}
            write_atomically(self._path, json.dumps(record).encode())

    def _exceeding(self, participations: int) -> float | None:
        limit = self._e.dp.epsilon
        if limit is None or (found := self.epsilon(participations)) <= limit:
            return None
        return found


def replaced(path: Path, told: EarlierRun | None = None) -> bytes | None:
    """What is to stay of the record in `path` when another run takes the folder; None: nothing.

    told: what the run there spent by its lines. Raises UserError for a damaged record, or without
    dp-accounting where the run had noise."""
    saved = read(path)
    earlier = list(saved.get("earlier", []))
    if told and (told["participations_max"] or saved.get("asked")):
        known = told["level"] == "none" and told in earlier  # infinite, once for all
        earlier += [] if known else [told]
    if saved.get("participations"):
        most = max(saved["participations"].values())
        spent = {k: saved[k] for k in ("fingerprint", "noise", "delta", "draws")}
        z = finite(epsilon(saved["noise"], most, saved["delta"]))
        earlier.append(
            spent | {"level": saved.get("level", "user"), "epsilon": z, "participations_max": most}
        )
    return json.dumps({"earlier": earlier}).encode() if earlier else None


def counts_on(was: Experiment, e: Experiment) -> bool:
    """Whether what a run spends adds to what another has spent as further rounds of that would."""
    return e.noises_rounds and was.dp == e.dp


def spent_by_lines(e: Experiment, visits: Iterable[VisitRow | FailedVisitRow]) -> EarlierRun | None:
    """What a run spent that is not in its record: of its clients' records, or without noise at all,
    which is ε = ∞. None: its record has all."""
    if e.noises_rounds:
        return None
    visits, records = list(visits), e.noises_gradients
    # visits that failed may have drawn noise, too, and no client has told what
    counts, told = Counter(row["client"] for row in visits), told_of_records(visits)
    return {
        "fingerprint": e.fingerprint(),
        "level": "record" if records else "none",
        "epsilon": finite(max(told.values(), default=math.inf)) if records else None,
        "noise": e.dp.noise if records else 0.0,
        "delta": e.dp.delta,
        "draws": None,
        "participations_max": max(counts.values(), default=0),
    }


def told_of_records(visits: Iterable[VisitRow | FailedVisitRow]) -> dict[int, float]:
    """By client, ascending, the ε of its records that it told with its admitted uploads."""
    told = dict[int, float]()
    for row in visits:
        if row["status"] == "ok":
            client = row["client"]
            told[client] = max(told.get(client, 0.0), row.get("epsilon", math.inf))
    return dict(sorted(told.items()))


def read_record(path: Path, what: str) -> dict[str, Any]:
    """What such a file says; empty if there is none. Raises UserError, by the name `what`, for a
    damaged one."""
    try:
        found = from_json(path.read_text()) if path.exists() else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{what}, is damaged; restore it")
    return found


def read(path: Path) -> dict[str, Any]:
    """The record in `path`; empty if there is none. Raises UserError for a damaged one."""
    return read_record(path, f"{path}, which counts what was spent of the clients' privacy")
