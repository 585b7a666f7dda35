"""What all runs together have spent at a site, and the bounds that its policy sets.

The ledger of a `state-path` counts each visit by its own terms, as this node was asked for it, and
before it begins. A visit that is asked for twice counts twice."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.dp.accountant import finite, noise_for, planned, record_epsilon
from pfedlora_flwr.features.dp.budget import read_record
from pfedlora_flwr.features.dp.spent import Spent
from pfedlora_flwr.federation.messages import folder_name
from pfedlora_flwr.files import write_atomically

logger = logging.getLogger(__name__)
_DELTA = 1e-5
"""The largest δ at which ε is counted here: a run chooses its own."""


@dataclass(frozen=True)
class Terms:
    """What decides the ε of a visit. noise: z; None: such that `planned` visits spend `wanted`.
    steps: of one visit, each of which takes a record with probability 1/parts."""

    noise: float | None
    wanted: float | None = None
    planned: int = 1
    parts: int = 1
    steps: int = 1
    delta: float = _DELTA

    def epsilon(self, visits: int) -> float:
        """ε of so many visits; infinite without noise."""
        z = self.noise
        if z is None:
            assert self.wanted is not None
            z = noise_for(self.wanted, self.planned, self.delta)
        return record_epsilon(z, self.parts, visits * self.steps, min(self.delta, _DELTA))


def terms_of(e: Experiment, spent: Spent | None) -> Terms:
    """Those of one visit. spent: the account of the client's records, where they are private."""
    if spent:
        return Terms(spent.noise, parts=spent.parts, steps=spent.steps, delta=e.dp.delta)
    if not e.noises_rounds:
        return Terms(0.0)
    if e.dp.noise is not None:
        return Terms(e.dp.noise, delta=e.dp.delta)
    return Terms(None, e.dp.epsilon, max(planned(e).values()), delta=e.dp.delta)


class Ledger:
    """The runs that a `state-path` took part in, and their visits by terms, on disk."""

    def __init__(
        self, folder: Path, epsilon_cap: float | None = None, runs_cap: int | None = None
    ) -> None:
        """The caps: the most ε of all runs, and the most runs; None: no bound."""
        self._folder, self._path = folder, folder / "ledger.json"
        self._epsilon_cap, self._runs_cap = epsilon_cap, runs_cap

    def enter(self, token: str) -> None:
        """Counts the run, once. Raises UserError beyond `runs-cap`."""
        self._change(folder_name(token), None)

    def spend(self, token: str, terms: Terms) -> None:
        """Counts one more visit. Raises UserError beyond `epsilon-cap`."""
        self._change(folder_name(token), terms)

    def runs(self) -> dict[str, float]:
        """By run, the ε of the visits that were asked for."""
        return {token: _spent(visits) for token, visits in self._read().items()}

    def epsilon(self) -> float | None:
        """Of all runs together; None where that is infinite."""
        return finite(sum(self.runs().values()))

    def words(self) -> str:
        """The same, for a reader."""
        spent = self.epsilon()
        return "not bounded: a run had no dp" if spent is None else f"{spent:g}"

    def _change(self, token: str, terms: Terms | None) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self._path}.lock"):
                runs = self._read()
                before = json.dumps(runs)
                visits = runs.setdefault(token, {})
                if (most := self._runs_cap) is not None and len(runs) > most:
                    self._refuse("runs-cap", f"this is the run number {len(runs)} here")
                if terms:
                    name = json.dumps(asdict(terms))
                    visits[name] = visits.get(name, 0) + 1
                    self._check(runs)
                if json.dumps(runs) != before:
                    write_atomically(self._path, json.dumps({"runs": runs}).encode())
        except OSError as error:
            raise UserError(f"state-path {self._folder}: {error.strerror}") from None

    def _read(self) -> dict[str, dict[str, int]]:
        """The visits of each run by their terms. What ran here before there was a ledger counts as
        a visit without noise."""
        what = f"{self._path}, which counts what this node spent in all runs"
        runs = dict[str, dict[str, int]](read_record(self._path, what).get("runs", {}))
        for model in self._folder.glob("*/[0-9]*/*.safetensors"):
            runs.setdefault(model.parent.parent.name, {json.dumps(asdict(Terms(0.0))): 1})
        return runs

    def _check(self, runs: Mapping[str, Mapping[str, int]]) -> None:
        cap = self._epsilon_cap
        if cap is None:
            return
        found = sum(map(_spent, runs.values()))
        if not found <= cap:  # NaN is not
            self._refuse("epsilon-cap", f"this visit would bring ε to {found:.4g}")

    def _refuse(self, cap: str, why: str) -> None:
        """Raises UserError without a figure: those stay in the node's own log."""
        logger.warning("%s: %s", cap, why)
        raise UserError(f"{cap} is set here, and this visit would exceed it: this node steps out")


def _spent(visits: Mapping[str, int]) -> float:
    return sum(Terms(**json.loads(name)).epsilon(count) for name, count in visits.items())
