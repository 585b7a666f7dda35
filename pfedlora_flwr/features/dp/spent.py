"""What one client has spent of its records' privacy (`dp.level=record`): in how many visits it drew
noise. It is the client's own account, beside its model, on disk before noise is drawn.

A visit that is done again, since its answer was lost or the run was killed, draws fresh noise and
counts again."""

from __future__ import annotations

import json
from pathlib import Path

from filelock import FileLock

from pfedlora_flwr.errors import UserError, wrong
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.dp.accountant import finite, planned, record_epsilon, record_noise_for
from pfedlora_flwr.features.dp.budget import FILE, read_record
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.models.private import parts_of
from pfedlora_flwr.training.loop import Noise

_WHAT = "its dp.json, which counts what was spent of its records' privacy"


class Spent:
    """The account of one client.

    visits: that drew noise so far. steps: of one visit, each of which takes a record with
    probability 1/parts."""

    visits: int
    _round: int
    _noise: float | None

    def __init__(
        self, folder: Path | None, e: Experiment, client: int, samples: int, epochs: int
    ) -> None:
        """folder: where the client keeps its model; None: of a client that is only planned.

        epochs: of DP-SGD in a visit. Raises UserError for an account that cannot be read or is of
        another number of samples, and if δ is too large for so many."""
        if e.dp.delta * samples >= 1:
            most = f"below 1/n_k, which is {1 / samples:g} for client {client}"
            raise wrong("dp.delta", e.dp.delta, most, "dp.level=record")
        self._path = folder / FILE if folder else None
        self._e, self._client = e, client
        self.parts = parts_of(samples, e.batch_size)
        self.steps = self.parts * epochs
        self._samples = samples
        self._read()

    @property
    def noise(self) -> float:
        """z: of the first visit, once there was one; by `dp.epsilon`, for the client's own plan."""
        e = self._e
        if self._noise is not None:
            return self._noise
        if e.dp.noise is not None:
            return e.dp.noise
        assert e.dp.epsilon is not None
        visits = max(1, planned(e).get(self._client, 0))
        return record_noise_for(e.dp.epsilon, self.parts, visits * self.steps, e.dp.delta)

    def epsilon(self, more: int = 0) -> float:
        """ε of each of its records, after so many more visits."""
        return self.of_visits(self.visits + more)

    def of_visits(self, count: int) -> float:
        """ε of each of its records in so many visits."""
        return record_epsilon(self.noise, self.parts, count * self.steps, self._e.dp.delta)

    @property
    def told(self) -> float | None:
        """ε so far, for a message; None where it is infinite."""
        return finite(self.epsilon())

    def spend(self, round: int, version: int) -> Noise:
        """Counts one more visit, and returns what its noise is to be.

        version: of its model, by the server; 0: it has none. Raises UserError where `dp.epsilon`
        would be exceeded, or the account is older than the model."""
        assert self._path is not None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # a visit of an earlier round, whose time was over, may begin beside this one
        with FileLock(f"{self._path}.lock"):
            self._read()
            return self._spend(self._path, round, version)

    def _spend(self, path: Path, round: int, version: int) -> Noise:
        """The same of the account as it was just read."""
        if self._round < version:
            raise UserError(
                f"{_WHAT}, is missing or older than its model of round {version}; restore it, or"
                " start a new run"
            )
        limit = self._e.dp.epsilon
        if limit is not None and (found := self.epsilon(1)) > limit:
            raise UserError(
                f"one more visit would bring the ε of its records to {found:.4g}, dp.epsilon is"
                f" {limit:g}"
            )
        self._noise = self.noise
        self.visits += 1
        self._round = max(round, self._round)
        record = {
            "visits": self.visits,
            "round": self._round,
            "noise": self._noise,
            "samples": self._samples,
        }
        write_atomically(path, json.dumps(record).encode())
        return Noise(self._noise, self._e.dp.norm)

    def _read(self) -> None:
        """The account as it is on disk."""
        saved = read_record(self._path, _WHAT) if self._path else {}
        self.visits = saved.get("visits", 0)
        self._round = saved.get("round", 0)
        self._noise = saved.get("noise")
        if (counted := saved.get("samples", self._samples)) != self._samples:
            raise UserError(
                f"{_WHAT}, is of visits to {counted} of them, and client {self._client} has"
                f" {self._samples} now: its ε is of one number; restore its data, or start a new"
                " run"
            )
