"""The server's state on disk: the shared tensors and everything needed to continue, in one
checksummed file per round."""

from __future__ import annotations

import hashlib
import json
import logging
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import from_json, write_atomically
from pfedlora_flwr.rng import SERVER
from pfedlora_flwr.runs.ledger import Cost

logger = logging.getLogger(__name__)
_KEPT = 2


@dataclass(frozen=True)
class Counts:
    """One client's last evaluation: correct predictions of how many, on its own validation and test
    samples, and its other scores by the name that they have in a line, without those that are not
    defined there. confusion: test samples by true and predicted class, if that is told."""

    validation_correct: int
    validation: int
    test_correct: int
    test: int
    scores: dict[str, float] = field(default_factory=dict)
    confusion: list[list[int]] | None = None

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Counts:
        """From JSON; older versions have the scores beside the counts."""
        own = {f.name: saved[f.name] for f in fields(cls) if f.name in saved}
        beside = {k: v for k, v in saved.items() if k not in own and v is not None}
        return cls(**({"scores": beside} | own))

    def line(self) -> dict[str, Any]:
        """The fields of a line."""
        return {
            "accuracy": self.accuracy("test"),
            "validation_accuracy": self.accuracy("validation"),
            **self.scores,
            **({"confusion": self.confusion} if self.confusion else {}),
        }

    def accuracy(self, part: str) -> float:
        """Correct predictions over samples of `part` ("test", "validation"), in [0, 1]; 0 where
        there are no samples."""
        return getattr(self, f"{part}_correct") / max(1, getattr(self, part))


@dataclass(frozen=True)
class Summed:
    """What a round's clients tell together. means: the fields of its line, of the clients in the
    sum; None where they were not evaluated. models: of their models' SHA-256 the sum, 64
    hexadecimal digits; empty with dp."""

    means: dict[str, float] | None
    models: str


@dataclass
class Evaluations:
    """What the clients' last evaluations told, by client, or together as `means`; stale: who has
    trained since."""

    counts: dict[int, Counts]
    other_accuracies: dict[int, dict[str, float]]
    stale: set[int]
    means: dict[str, float] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"stale": sorted(self.stale)}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Evaluations:
        counts = {int(k): Counts.of(c) for k, c in saved["counts"].items()}
        others = {int(k): v for k, v in saved["other_accuracies"].items()}
        return cls(counts, others, set(saved["stale"]), saved.get("means"))


@dataclass
class ServerState:
    """All that the server remembers after `round`.

    versions: by client, the round whose update was last admitted. models: by client, the SHA-256 of
    that version, and under masks, of SERVER, of what was told of all of them; states: of its own
    state under `sharing=none`. counts: by client, of its last evaluation. means: what the last
    round's clients told of theirs together, under masks, as fields of its line. other_accuracies
    (of the method's further predictors): by client, of its last visit, where that was evaluated.
    stale: clients that trained since. failed_rounds: rounds below min-success in a row. seconds: of
    all rounds but round 0; busy: trained or evaluated at visits.
    claims: with max-weight, by client: its first n_k. sizes: of the last rounds' median updates.
    before_last: where `round` was evaluated only for being the last, the evaluations without that
    one: a run of more rounds goes on from them."""

    tensors: dict[str, Tensor]
    round: int = 0
    versions: dict[int, int] = field(default_factory=dict)
    models: dict[int, str] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    counts: dict[int, Counts] = field(default_factory=dict)
    means: dict[str, float] | None = None
    other_accuracies: dict[int, dict[str, float]] = field(default_factory=dict)
    stale: set[int] = field(default_factory=set)
    claims: dict[int, int] = field(default_factory=dict)
    sizes: list[float] = field(default_factory=list)
    totals: Cost = field(default_factory=Cost)
    server_flops: int = 0
    refused: int = 0
    failed_rounds: int = 0
    seconds: float = 0.0
    training_seconds: float = 0.0
    busy_seconds: float = 0.0
    before_last: Evaluations | None = None

    def keep_evaluations(self) -> None:
        """Keeps the evaluations as they are, before one that is made only for being the last."""
        others = {client: dict(shares) for client, shares in self.other_accuracies.items()}
        self.before_last = Evaluations(dict(self.counts), others, set(self.stale), self.means)

    def train(self, client: int, version: int, sha256: str | None) -> None:
        """The client's model is this one now, and not evaluated. Its further predictors cannot be,
        but at a visit: they read what it received."""
        self.versions[client] = version
        self.models.pop(client, None)  # where none is told, an older one is of another version
        if sha256 is not None:
            self.models[client] = sha256
        for evaluations in (self, self.before_last):
            if evaluations is not None:
                evaluations.stale.add(client)
                evaluations.other_accuracies.pop(client, None)

    def take_sum(self, told: Summed) -> None:
        """Takes in what a round's clients tell together."""
        self.means = told.means or self.means
        if told.models:
            chained = self.models.get(SERVER, "") + told.models
            self.models[SERVER] = hashlib.sha256(chained.encode()).hexdigest()

    def forget_evaluations(self, clients: Iterable[int]) -> None:
        """Clients that have left count in no mean any more."""
        for evaluations in (self, self.before_last):
            if evaluations is not None:
                for client in clients:
                    evaluations.counts.pop(client, None)
                    evaluations.other_accuracies.pop(client, None)
                    evaluations.stale.discard(client)

    def drop_last_evaluation(self) -> None:
        """Makes the state what it would be had its round not been the last."""
        assert self.before_last is not None
        kept, self.before_last = self.before_last, None
        self.counts = kept.counts
        self.other_accuracies = kept.other_accuracies
        self.stale = kept.stale
        self.means = kept.means

    def evaluated(self) -> dict[str, Any]:
        """The fields of a round's line that are means over the evaluated clients."""
        if self.means is not None:
            return {**self.means, "other_accuracies": {}}
        of_clients = [counts.line() for counts in self.counts.values()]
        names = dict.fromkeys(name for line in of_clients for name in line if name != "confusion")
        found = {name: [line[name] for line in of_clients if name in line] for name in names}
        few = {name: len(of) for name, of in found.items() if len(of) < len(of_clients)}
        return {
            "accuracy": 0.0,
            "validation_accuracy": 0.0,
            **{name: statistics.fmean(of) for name, of in found.items()},
            **({"scored": few} if few else {}),
            "evaluated": len(self.counts),
            "other_accuracies": self.mean_other_accuracies(),
        }

    def accuracies(self, part: str) -> dict[int, float]:
        """By client, its accuracy on `part` ("test", "validation") at its last evaluation."""
        return {client: counts.accuracy(part) for client, counts in sorted(self.counts.items())}

    def mean_other_accuracies(self) -> dict[str, float]:
        """By further predictor of the method: the unweighted mean of its test accuracy over the
        clients that have it."""
        found = self.other_accuracies.values()
        return {
            name: statistics.fmean(shares[name] for shares in found if name in shares)
            for name in dict.fromkeys(name for shares in found for name in shares)
        }

    def to_json(self) -> dict[str, Any]:
        """Everything but the tensors."""
        return {k: v for k, v in self.__dict__.items() if k != "tensors"} | {
            "counts": {k: asdict(c) for k, c in self.counts.items()},
            "stale": sorted(self.stale),
            "totals": self.totals.as_dict(),
            "before_last": self.before_last.to_json() if self.before_last else None,
        }

    @classmethod
    def from_json(cls, meta: dict[str, Any], tensors: dict[str, Tensor]) -> ServerState:
        by_client = {
            n: {int(k): v for k, v in meta[n].items()}
            for n in ("versions", "models", "states", "other_accuracies", "counts", "claims")
        }
        by_client["counts"] = {k: Counts.of(c) for k, c in by_client["counts"].items()}
        last = meta["before_last"]
        rest = {
            "stale": set(meta["stale"]),
            "totals": Cost(**meta["totals"]),
            "before_last": Evaluations.from_json(last) if last else None,
        }
        return cls(tensors, **(meta | by_client | rest))


class Checkpoints:
    """The checkpoints in one folder: the last two are kept, and those after which a site joined."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def paths(self) -> list[Path]:
        """The checkpoints on disk, oldest first."""
        return sorted(self.folder.glob("round-*.checkpoint"))

    def rounds(self) -> list[int]:
        """Their rounds, ascending."""
        return [_round_of(path) for path in self.paths()]

    def save(self, state: ServerState) -> None:
        """Writes the state after its round, then removes all but the last two."""
        self.folder.mkdir(parents=True, exist_ok=True)
        metadata = {"state": json.dumps(state.to_json()), "order": json.dumps(list(state.tensors))}
        payload = safetensors.torch.save(state.tensors, metadata)
        seal = hashlib.sha256(payload).hexdigest().encode()
        write_atomically(self._path(state.round), seal + payload)
        for old in self.paths()[:-_KEPT]:
            old.unlink(missing_ok=True)

    def pin(self, round: int) -> None:
        """Keeps the checkpoint of a round for good, beside the last two."""
        write_atomically(self._pinned(round), self._path(round).read_bytes())

    def pinned(self) -> dict[int, ServerState]:
        """What `pin` kept, by round; a damaged one is passed over with a warning."""
        found = dict[int, ServerState]()
        for path in sorted(self.folder.glob("joined-*.checkpoint")):
            try:
                state = self._read(path)
            except (ValueError, KeyError, TypeError) as error:
                logger.warning("checkpoint %s is damaged (%s)", path.name, error)
            else:
                found[state.round] = state
        return found

    def load(self, before: int | None = None, *, set_aside: bool = False) -> ServerState | None:
        """The newest whole checkpoint, of those before a round if one is given; a damaged one is
        passed over with a warning.

        set_aside: whether damaged ones are renamed, which the run's only writer does. None where
        there never was one. Raises UserError when there are some and none can be read: to begin
        anew would throw away what the clients hold."""
        damaged = dict[Path, Exception]()
        for path in reversed(self.paths()):
            if before is not None and _round_of(path) >= before:
                continue
            try:
                state = self._read(path)
            except (ValueError, KeyError, TypeError) as error:
                damaged[path] = error
                continue
            for other, reason in damaged.items():
                told = f"{other.name} is damaged ({reason}): falling back to the previous one"
                warn_once(self.folder, f"checkpoint {told}")
                if set_aside:
                    other.rename(other.with_suffix(".damaged"))
            return state
        if unreadable := [*damaged, *self.folder.glob("*.damaged")]:
            names = ", ".join(sorted(path.name for path in unreadable))
            raise UserError(
                f"no checkpoint in {str(self.folder)!r} can be read ({names}); restore one, or"
                " start again with overwrite=true"
            )
        return None

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.checkpoint"

    def _pinned(self, round: int) -> Path:
        return self.folder / f"joined-{round:06d}.checkpoint"

    @staticmethod
    def _read(path: Path) -> ServerState:
        whole = path.read_bytes()
        seal, payload = whole[:64], whole[64:]
        if hashlib.sha256(payload).hexdigest().encode() != seal:
            raise ValueError("its checksum differs")
        metadata = from_json(payload[8 : 8 + int.from_bytes(payload[:8], "little")])["__metadata__"]
        tensors = safetensors.torch.load(payload)
        return ServerState.from_json(
            from_json(metadata["state"]), {n: tensors[n] for n in from_json(metadata["order"])}
        )


@cache
def warn_once(folder: Path, line: str) -> None:
    """Logs a warning on a run's folder once a command, which may load many of its models."""
    logger.warning("%s", line)


def _round_of(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))
