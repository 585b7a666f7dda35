"""What a node demands of every run, whatever the run's configuration says: differential privacy of
a level, and bounds on what all runs together may spend here.

The ledger of a `state-path` counts each visit by its own terms, as this node was asked for it, and
before it begins. A visit that is asked for twice counts twice."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from flwr.app import Context, Error, Message

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.flower_compat import ClientAppCallable, ErrorCode, Mod
from pfedlora_flwr.federation.messages import folder_name
from pfedlora_flwr.federation.node_config import number_in
from pfedlora_flwr.files import write_atomically
from pfedlora_flwr.runs.accountant import noise_for, planned, record_epsilon
from pfedlora_flwr.runs.budget import read_record
from pfedlora_flwr.runs.spent import Spent

logger = logging.getLogger(__name__)
_DELTA = 1e-5
"""The largest δ at which ε is counted here: a run chooses its own."""
_LEVELS = ("user", "record")


@dataclass(frozen=True)
class Demands:
    """The demands in a node-config. dp: the level; epsilon: the most of all runs together; runs:
    the most that this node takes part in. None: no such demand."""

    dp: str | None
    epsilon: float | None
    runs: int | None

    @classmethod
    def of(cls, node_config: Mapping[str, object]) -> Demands:
        """Raises UserError for values that are none."""
        level, cap = node_config.get("dp"), node_config.get("epsilon-cap")
        if level is not None and level not in _LEVELS:
            raise UserError(f"dp is {level!r} in the node-config; allowed: {' or '.join(_LEVELS)}")
        if level == "record" and "secagg" in node_config:
            raise UserError(
                "the node-config has dp='record' and secagg='required', and no run has both: choose"
                " one"
            )
        try:
            epsilon = None if cap is None else float(str(cap))
        except ValueError:
            epsilon = math.nan
        if epsilon is not None and not 0 < epsilon < math.inf:
            raise UserError(f"epsilon-cap is {cap!r} in the node-config; allowed: a number above 0")
        runs = number_in(node_config, "runs-cap")
        if runs == 0:
            raise UserError("runs-cap is 0 in the node-config; allowed: an integer from 1 on")
        if (epsilon, runs) != (None, None) and "state-path" not in node_config:
            raise UserError(
                "epsilon-cap and runs-cap need a state-path in the node-config, where this node"
                " counts"
            )
        return cls(None if level is None else str(level), epsilon, runs)

    def check(self, e: Experiment) -> None:
        """Raises UserError unless this node may take part in a run of `e`, as far as its keys
        say."""
        wanted = "epsilon-cap" if self.dp is None else "dp"
        if (self.dp, self.epsilon) == (None, None):
            return
        if not e.dp.enabled or e.dp.noise == 0:
            what = "dp.noise is 0" if e.dp.enabled else "no dp is set"
            raise UserError(f"{wanted} is demanded here, and {what} in this run")
        if self.dp not in (None, e.dp.level):
            raise UserError(
                f"dp of level {self.dp} is demanded here, and dp.level is {e.dp.level} in this run"
            )


def demanded(config_of: Callable[[Context], RunConfig]) -> Mod:
    """A mod of the ClientApp: a node takes part in no run that is not what it demands, and says
    why, before it reads its data."""

    def check(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            Demands.of(context.node_config).check(config_of(context).experiment)
        except UserError as why:
            logger.warning("%s", why)
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(why)), reply_to=message)
        return call_next(message, context)

    return check


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
    if not e.dp.of_users:
        return Terms(0.0)
    if e.dp.noise is not None:
        return Terms(e.dp.noise, delta=e.dp.delta)
    return Terms(None, e.dp.epsilon, max(planned(e).values()), delta=e.dp.delta)


class Ledger:
    """The runs that a `state-path` took part in, and their visits by terms, on disk."""

    def __init__(self, folder: Path, demands: Demands) -> None:
        self._folder, self._path = folder, folder / "ledger.json"
        self._demands = demands

    def enter(self, token: str) -> None:
        """Counts the run, once. Raises UserError beyond `runs-cap`."""
        self._change(folder_name(token), None)

    def spend(self, token: str, terms: Terms) -> None:
        """Counts one more visit. Raises UserError beyond `epsilon-cap`."""
        self._change(folder_name(token), terms)

    def _change(self, token: str, terms: Terms | None) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self._path}.lock"):
                runs = self._read()
                before = json.dumps(runs)
                visits = runs.setdefault(token, {})
                if (most := self._demands.runs) is not None and len(runs) > most:
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
        cap = self._demands.epsilon
        if cap is None:
            return
        every = [item for visits in runs.values() for item in visits.items()]
        found = sum(Terms(**json.loads(name)).epsilon(count) for name, count in every)
        if not found <= cap:  # NaN is not
            self._refuse("epsilon-cap", f"this visit would bring ε to {found:.4g}")

    def _refuse(self, cap: str, why: str) -> None:
        """Raises UserError without a figure: those stay in the node's own log."""
        logger.warning("%s of the node-config: %s", cap, why)
        raise UserError(f"{cap} is set here, and this visit would exceed it: this node steps out")


def ledger_of(node_config: Mapping[str, Any]) -> Ledger | None:
    """That of a real node; None without a `state-path`."""
    if "state-path" not in node_config:
        return None
    return Ledger(Path(str(node_config["state-path"])).expanduser(), Demands.of(node_config))
