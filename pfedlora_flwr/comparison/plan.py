"""The plan of a comparison: its runs and their folders. It is stored beside the runs, so that a
report knows what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import KEYS
from pfedlora_flwr.files import check_regular, from_json, write_atomically
from pfedlora_flwr.keys import Scalar

Keys = dict[str, Scalar]
Choices = frozenset[frozenset[tuple[str, Scalar]]]
_FILE = "plan.json"


@dataclass(frozen=True)
class Candidate:
    """One choice of the tuned keys, and its runs: the directory of each seed, relative to the
    comparison's. rounds: of its runs."""

    tuned: Keys
    runs: dict[int, str]
    rounds: int | None = None


@dataclass(frozen=True)
class Cell:
    """One method in one scenario: a cell of the paper's tables. More than one candidate: the first
    seed's runs choose; none: it is Standalone by construction (`sharing`), and nothing is run."""

    scenario: Keys
    method: str
    candidates: tuple[Candidate, ...]


def unit(seed: int, fold: int, folds: int) -> int:
    """The number by which a comparison knows a run of this seed and fold; without folds the
    seed."""
    return seed * folds + fold


def choices(tuned: Iterable[Keys]) -> Choices:
    """What tuned keys may be, without the options of single methods: two methods with equal ones
    are tuned alike, as far as Standalone is concerned."""
    return frozenset(
        frozenset((key, value) for key, value in keys.items() if key in KEYS) for keys in tuned
    )


@dataclass(frozen=True)
class Plan:
    """A whole comparison. tuning_seed: the seed that chooses among a cell's candidates. said: the
    lines of the checks before its runs."""

    name: str
    seeds: tuple[int, ...]
    tuning_seed: int
    cells: tuple[Cell, ...]
    said: tuple[str, ...] = ()
    verdict: Keys = field(default_factory=dict)
    """What its file says of the keys `verdict.…`."""
    folds: int = 1
    """With several, `seeds` has a number for each fold of each seed (`unit`)."""

    @property
    def score(self) -> str:
        """The score that decides."""
        return str(self.verdict.get("verdict.score", "accuracy"))

    @classmethod
    def read(cls, directory: Path) -> Plan | None:
        """The plan of the comparison in a directory, if there is one. Raises UserError when it
        cannot be read."""
        file = directory / _FILE
        if not file.exists():
            return None
        check_regular(file)
        try:
            saved = from_json(file.read_text(encoding="utf-8"))
            seeds, cells = tuple(saved["seeds"]), tuple(map(_cell, saved["cells"]))
            said = tuple(saved.get("said", ()))
            rest = said, saved.get("verdict", {}), saved.get("folds", 1)
            return cls(saved["name"], seeds, saved["tuning_seed"], cells, *rest)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise UserError(
                f"{file} cannot be read as the plan of a comparison; remove it: `compare` writes it"
                " again"
            ) from None

    def write(self, directory: Path) -> None:
        """Leaves the plan in a directory."""
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / _FILE, (json.dumps(asdict(self), indent=1) + "\n").encode())


def _cell(saved: dict[str, Any]) -> Cell:
    candidates = (
        Candidate(c["tuned"], {int(seed): run for seed, run in c["runs"].items()}, c["rounds"])
        for c in saved["candidates"]
    )
    return Cell(saved["scenario"], saved["method"], tuple(candidates))
