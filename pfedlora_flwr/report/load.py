"""The input of a report: runs read from disk, arranged in cells (a method in a scenario)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pfedlora_flwr.comparison.outcome import Outcome, by_seed, of_one_code, reported
from pfedlora_flwr.comparison.plan import Candidate, Keys, Plan, unit
from pfedlora_flwr.config import find_key
from pfedlora_flwr.errors import UserError, some
from pfedlora_flwr.execution import Execution
from pfedlora_flwr.experiment import KEYS
from pfedlora_flwr.features.rules import normal
from pfedlora_flwr.files import check_folder
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import measures
from pfedlora_flwr.runs.completed import Missing, Run, read_run
from pfedlora_flwr.runs.directory import RunDirectory, find_runs
from pfedlora_flwr.training.metrics import place

_APART = "method", "seed", "split.fold"
_NAMED = 3
"""Paths that a title names."""


@dataclass(frozen=True)
class Study:
    """Everything a report shows. Scenarios and methods are in the order of their first outcome.

    said: what comparisons said before their runs."""

    name: str
    outcomes: tuple[Outcome, ...]
    said: tuple[str, ...] = ()
    score: str = "accuracy"
    margin: float = 0.02
    """Of its verdict; the margin is a share."""
    std: bool = False
    best: bool = False
    """Whether accuracies have their standard deviation beside the interval, and whether the best
    and the second best are marked."""

    @property
    def scenarios(self) -> list[Keys]:
        return [
            dict(items) for items in dict.fromkeys(tuple(o.scenario.items()) for o in self.outcomes)
        ]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(o.method for o in self.outcomes))

    @property
    def titles(self) -> list[str]:
        """The methods' names, as tables list them."""
        found = {o.method: o.title for o in self.outcomes}
        return [found[method] for method in registry.ordered(self.methods)]

    @property
    def runs(self) -> list[Run]:
        """The completed runs; one that belongs to several scenarios is there once."""
        return list({run.path: run for o in self.outcomes for run in o.runs.values()}.values())

    def at(self, scenario: Keys, method: str) -> Outcome | None:
        """The outcome of `method` in `scenario`, if it is part of the study."""
        return next(
            (o for o in self.outcomes if o.method == method and o.scenario == scenario), None
        )

    def alone(self, scenario: Keys) -> Outcome | None:
        """Standalone beside a scenario's methods. It shares nothing, so beside controls it is the
        one that is none."""
        return self.at(self.shared(scenario), "standalone")

    @staticmethod
    def shared(scenario: Keys) -> Keys:
        """The scenario of which this one has the controls, or itself: their data are the same."""
        return scenario | normal(scenario)

    def communicates(self, scenario: Keys) -> bool:
        """Whether what all runs of a scenario send is their methods' communication."""
        return all(map(communicates, self.in_scenario(scenario)))

    def in_scenario(self, scenario: Keys) -> list[Outcome]:
        """The outcomes of a scenario that have a completed run."""
        return [o for o in self.outcomes if o.scenario == scenario and o.runs]

    def ordered(self, scenario: Keys) -> list[Outcome]:
        """The same, as tables list their methods."""
        rank = registry.ordered(self.methods)
        return sorted(self.in_scenario(scenario), key=lambda outcome: rank.index(outcome.method))

    def in_order(self) -> list[Outcome]:
        """All outcomes that have runs, scenario by scenario, as tables list them."""
        return [outcome for scenario in self.scenarios for outcome in self.ordered(scenario)]


def tells_operations(outcome: Outcome) -> bool:
    """Whether it is known what clients compute: they withhold it with `dp` and `secagg`, and a
    user's own method need not count it."""
    return all(map(measures.tells_operations, outcome.runs.values()))


def communicates(outcome: Outcome) -> bool:
    """Whether what these runs send is their method's communication: a control's is not."""
    return not any(run.experiment.control for run in outcome.runs.values())


def load(paths: Iterable[Path], target: float | None = None, verdict: Keys | None = None) -> Study:
    """The study in the given directories: comparisons, runs, or folders of runs. Raises UserError
    where there is nothing to report.

    target: the accuracy that costs are counted to, in the place of the Experiments' own. verdict:
    the keys `verdict.…` in the place of what the comparison, or the first run, says.
    """
    KEYS["target-accuracy"].parse(target)
    paths = list(paths)
    for path in paths:
        check_folder(path)
    outcomes: list[Outcome] = []
    judged: Keys = {}
    bare: list[tuple[Path, Run | Missing]] = []
    said: list[str] = []
    for path in paths:
        if plan := Plan.read(path):
            said += plan.said
            # another's scenarios are not its own
            of: Keys = {"comparison": _name(path, paths)} if len(paths) > 1 else {}
            judged = plan.verdict | judged
            outcomes += [
                replace(outcome, scenario=of | outcome.scenario) for outcome in reported(path, plan)
            ]
        else:
            bare += _runs(path)
    outcomes += _arranged(bare)
    first = next((run.config.execution for o in outcomes for run in o.runs.values()), Execution())
    judged = first.flat() | judged | (verdict or {})
    score, margin = (find_key(k).parse(judged[k]) for k in ("verdict.score", "verdict.margin"))

    def taken(run: Run) -> Run:
        return (run if target is None else replace(run, target=target)).judged_by(score)

    outcomes = [replace(o, runs={k: taken(run) for k, run in o.runs.items()}) for o in outcomes]
    told = [run.result for o in outcomes for run in o.runs.values()]
    if told and not any(place(score) in of for of in told):
        raise UserError(
            f"no run tells {score}: its `verdict.score` did not ask for it, or clients hide it"
        )
    name = some([path.absolute().name for path in paths], _NAMED)
    return Study(name, _named(outcomes), tuple(dict.fromkeys(said)), score, margin / 100)


def _named(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    titles = registry.titles(dict.fromkeys(o.method for o in outcomes))
    own = [method for method in titles if ":" in method]
    return tuple(
        replace(o, title=titles[o.method], own=own.index(o.method) if o.method in own else 0)
        for o in outcomes
    )


def _name(path: Path, paths: Sequence[Path]) -> str:
    """A folder's name, or its path where another's is the same."""
    name = path.absolute().name
    return name if sum(other.absolute().name == name for other in paths) == 1 else str(path)


def _runs(folder: Path) -> list[tuple[Path, Run | Missing]]:
    """The runs in a folder that is no comparison's. Raises UserError if none is completed."""
    found = [(run.path, read_run(run.path)) for run in find_runs(folder)]
    missing = [run for _, run in found if isinstance(run, Missing)]
    if len(missing) == len(found):
        raise UserError(
            f"{folder} holds no completed run"
            + (f"; the first one there is {missing[0].reason}" if missing else "")
        )
    return found


def _arranged(found: Sequence[tuple[Path, Run | Missing]]) -> list[Outcome]:
    """Runs without a plan: the keys in which the completed ones differ, method and seed left out,
    make the scenarios.

    A run whose method does not have such a key (Standalone has no μ) belongs to every scenario that
    the keys it has agree with."""
    flats = {folder: run.experiment.flat() for folder, run in found if isinstance(run, Run)}
    names = dict.fromkeys(key for flat in flats.values() for key in flat if key not in _APART)
    differing = [
        key for key in names if len({str(flat[key]) for flat in flats.values() if key in flat}) > 1
    ]

    def part(flat: Keys) -> Keys:
        return {key: flat[key] for key in differing if key in flat}

    parts = [part(flat) for flat in flats.values()]
    scenarios = [own for own in parts if not any(own.items() < other.items() for other in parts)]
    cells: dict[tuple[str, tuple[tuple[str, Scalar], ...]], Outcome] = {}

    def cells_of(method: str, flat: Keys) -> list[Outcome]:
        own = part(flat)
        homes = dict.fromkeys(tuple(s.items()) for s in scenarios if own.items() <= s.items()) or [
            tuple(own.items())
        ]
        return [
            cells.setdefault((method, home), Outcome(dict(home), method, Candidate({}, {}), {}, {}))
            for home in homes
        ]

    for folder, run in found:
        if isinstance(run, Run):
            e = run.experiment
            for cell in cells_of(e.method, flats[folder]):
                one = unit(e.seed, e.split.fold, e.split.folds or 1)
                if one in cell.runs:
                    raise UserError(
                        f"{folder} and {cell.runs[one].path} hold the same Experiment; give"
                        f" only one"
                    )
                cell.runs[one] = run
    for folder, run in found:
        if isinstance(run, Missing):
            try:
                e = RunDirectory(folder).experiment()
            # another version's, or its method's module is not here: it belongs to no scenario
            except UserError:
                continue
            for cell in cells_of(e.method, e.flat()):
                if (one := unit(e.seed, e.split.fold, e.split.folds or 1)) not in cell.runs:
                    cell.missing[one] = run
    in_order = sorted(
        cells.items(), key=lambda cell: [(isinstance(value, str), value) for _, value in cell[0][1]]
    )
    return [by_seed(of_one_code(outcome), _folds(outcome)) for _, outcome in in_order]


def _folds(outcome: Outcome) -> int:
    """How many runs each of its seeds has."""
    return next((run.experiment.split.folds or 1 for run in outcome.runs.values()), 1)
