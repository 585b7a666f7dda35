"""What a report is made of: runs read from disk, arranged in cells (a method in a scenario)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pfedlora_flwr.comparison.spec import PLAN, Keys
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.keys import Scalar, UserError
from pfedlora_flwr.runs.completed import Missing, Run, read_run
from pfedlora_flwr.runs.directory import Row, RunDirectory, find_runs


@dataclass(frozen=True)
class Tried:
    """One candidate of a tuned cell: what it set, and its validation accuracy or why there is none."""

    tuned: Keys
    validation: float | None
    missing: Missing | None = None


@dataclass(frozen=True)
class Outcome:
    """One method in one scenario: its completed runs by seed, and for each missing seed the reason.

    tried: where keys were tuned, all candidates. tuned: the choice; None before it is made.
    """

    scenario: Keys
    method: str
    runs: dict[int, Run]
    missing: dict[int, str]
    tuned: Keys | None
    tried: tuple[Tried, ...] = ()


@dataclass(frozen=True)
class Study:
    """Everything a report shows. Scenarios and methods are in the order of their first outcome."""

    name: str
    outcomes: tuple[Outcome, ...]

    @property
    def scenarios(self) -> list[Keys]:
        return [dict(items) for items in dict.fromkeys(tuple(o.scenario.items()) for o in self.outcomes)]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(o.method for o in self.outcomes))

    def at(self, scenario: Keys, method: str) -> Outcome | None:
        """The outcome of `method` in `scenario`, if it is part of the study."""
        return next((o for o in self.outcomes if o.method == method and o.scenario == scenario), None)

    def in_scenario(self, scenario: Keys) -> list[Outcome]:
        """The outcomes of a scenario that have a completed run."""
        return [o for o in self.outcomes if o.scenario == scenario and o.runs]


def choose(tried: Sequence[Tried]) -> int | None:
    """The candidate with the highest validation accuracy, the first of ties; None where none has one."""
    having = [i for i, t in enumerate(tried) if t.validation is not None]
    return max(having, key=lambda i: (tried[i].validation, -i), default=None)


def load(paths: Iterable[Path]) -> Study:
    """The study in the given directories: comparisons, runs, or folders of runs. Raises UserError where there is nothing to report."""
    paths = list(paths)
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is no directory")
    outcomes: list[Outcome] = []
    bare: list[tuple[Path, Run | Missing]] = []
    for path in paths:
        if (path / PLAN).exists():
            name = path.absolute().name
            alone = sum(other.absolute().name == name for other in paths) == 1
            of: Keys = {"comparison": name if alone else str(path)} if len(paths) > 1 else {}  # another's scenarios are not its own
            outcomes += [replace(outcome, scenario=of | outcome.scenario) for outcome in _planned(path)]
            continue
        found = [(run.path, read_run(run.path)) for run in find_runs(path)]
        missing = [run for _, run in found if isinstance(run, Missing)]
        if len(missing) == len(found):
            raise UserError(f"{path} holds no completed run" + (f"; the first one there is {missing[0].reason}" if missing else ""))
        bare += found
    return Study(paths[0].name, tuple(outcomes + _arranged(bare)))


def _planned(directory: Path) -> list[Outcome]:
    """The outcomes of a comparison, from the plan beside its runs."""
    plan = json.loads((directory / PLAN).read_text())
    return [_outcome(directory, cell, plan["tuning_seed"], plan["seeds"]) for cell in plan["cells"]]


def _outcome(directory: Path, cell: Row, tuning_seed: int, seeds: Sequence[int]) -> Outcome:
    candidates = cell["candidates"]
    tried: list[Tried] = []
    chosen: int | None = 0
    if len(candidates) > 1:
        for candidate in candidates:
            found = read_run(directory / candidate["runs"][str(tuning_seed)])
            tried.append(
                Tried(candidate["tuned"], None, found) if isinstance(found, Missing) else Tried(candidate["tuned"], found.validation)
            )
        waiting = sum(t.missing is not None and t.missing.status != "failed" for t in tried)
        chosen = None if waiting else choose(tried)
    if chosen is None:
        begun = f"not tuned yet: {len(tried) - waiting} of {len(tried)} candidates have run"
        reason = begun if waiting else f"nothing to choose from: {tried[0].missing.reason if tried[0].missing else ''}"
        return Outcome(cell["scenario"], cell["method"], {}, dict.fromkeys(seeds, reason), None, tuple(tried))
    all_runs = {seed: read_run(directory / candidates[chosen]["runs"][str(seed)]) for seed in seeds}
    return Outcome(
        cell["scenario"],
        cell["method"],
        {seed: run for seed, run in all_runs.items() if isinstance(run, Run)},
        {seed: run.reason for seed, run in all_runs.items() if isinstance(run, Missing)},
        candidates[chosen]["tuned"],
        tuple(tried),
    )


def _arranged(found: Sequence[tuple[Path, Run | Missing]]) -> list[Outcome]:
    """Runs without a plan: the keys in which the completed ones differ, method and seed left out, make the scenarios.

    A run whose method does not have such a key (Standalone has no μ) belongs to every scenario that the keys it has agree with.
    """
    flats = {folder: _flat(run.experiment) for folder, run in found if isinstance(run, Run)}
    names = dict.fromkeys(key for flat in flats.values() for key in flat if key not in ("method", "seed"))
    differing = [key for key in names if len({str(flat[key]) for flat in flats.values() if key in flat}) > 1]

    def part(flat: Keys) -> Keys:
        return {key: flat[key] for key in differing if key in flat}

    parts = [part(flat) for flat in flats.values()]
    scenarios = [own for own in parts if not any(own.items() < other.items() for other in parts)]
    cells: dict[tuple[str, tuple[tuple[str, Scalar], ...]], Outcome] = {}

    def cells_of(method: str, flat: Keys) -> list[Outcome]:
        own = part(flat)
        homes = dict.fromkeys(tuple(s.items()) for s in scenarios if own.items() <= s.items()) or [tuple(own.items())]
        return [cells.setdefault((method, home), Outcome(dict(home), method, {}, {}, {})) for home in homes]

    for folder, run in found:
        if isinstance(run, Run):
            e = run.experiment
            for cell in cells_of(e.method, flats[folder]):
                if e.seed in cell.runs:
                    raise UserError(f"{folder} and {cell.runs[e.seed].path} hold the same Experiment; give one of them")
                cell.runs[e.seed] = run
    for folder, run in found:
        if isinstance(run, Missing):
            try:
                e = RunDirectory(folder).experiment()
            except UserError:  # another version's, or its method's module is not here: it belongs to no scenario
                continue
            for cell in cells_of(e.method, _flat(e)):
                if e.seed not in cell.runs:
                    cell.missing[e.seed] = run.reason
    in_order = sorted(cells.items(), key=lambda cell: [(isinstance(value, str), value) for _, value in cell[0][1]])
    return [outcome for _, outcome in in_order]


def _flat(e: Experiment) -> Keys:
    return {name: k.text(value) for name, (k, value) in e.keys().items() if k.result}
