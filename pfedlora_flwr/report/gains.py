"""What sharing gives a method: its accuracy beside that of its controls (the key `sharing`), seed by seed."""

from __future__ import annotations

from collections.abc import Mapping

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.comparison.plan import Keys
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import measures, words
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.table import Table
from pfedlora_flwr.runs.completed import Run

STANDALONE = "= Standalone"
"""The cell of a control that receives nothing by construction, and is not run."""
_CONTROLS = ("none", "start")


def gains(study: Study) -> Table:
    """A row a method in each scenario that has it with `sharing=mean` and in a control."""
    rows = [
        _row(study, o)
        for scenario in study.scenarios
        if scenario.get("sharing") == "mean" and any(_of(study, scenario, kind) for kind in _CONTROLS)
        for o in study.ordered(scenario)
        if o.method != "standalone"
    ]
    note = (
        "Test accuracy in percent at the round of the best validation accuracy, the mean over seeds; differences in points, "
        f"paired by seed, with their 95 % t-interval; below {measures.FEWEST} seeds each seed's. "
        "`mean`: the method as it is. `none`: every client is a federation of one, and receives what the server makes of its own "
        "uploads. `start`: every client receives the first state in every round. "
        f"`{STANDALONE}`: such a client receives nothing, so nothing was run, and the difference is to Standalone's runs."
    )
    return Table("sharing", "Gain from sharing", rows, note)


def is_control(outcome: Outcome) -> bool:
    """Whether these runs are of a control: what it sends is no method's communication."""
    return any(run.experiment.sharing != "mean" for run in outcome.runs.values())


def _row(study: Study, ours: Outcome) -> dict[str, str]:
    row = {
        "scenario": words.keys({name: value for name, value in ours.scenario.items() if name != "sharing"}),
        "method": registry.title(ours.method),
        "seeds": str(len(ours.runs)),
        "mean": _mean(ours.runs),
    }
    differences = {}
    for kind in _CONTROLS:
        control = study.at(ours.scenario | {"sharing": kind}, ours.method)
        standalone = control is not None and control.standalone
        theirs = study.alone(ours.scenario) if standalone else control
        runs = theirs.runs if theirs else {}
        row[kind] = STANDALONE if standalone else _mean(runs)
        differences[f"mean − {kind}, points"] = words.percent(measures.paired(ours.runs, runs), sign=True)
    return row | differences


def _of(study: Study, scenario: Keys, kind: str) -> bool:
    """Whether the study has a control of the scenario."""
    return scenario | {"sharing": kind} in study.scenarios


def _mean(runs: Mapping[int, Run]) -> str:
    found = measures.estimate([run.accuracy for run in runs.values()])
    return f"{100 * found.mean:.2f}" if found else "–"
