"""A method's gain from sharing: its accuracy beside that of its controls (the key `sharing`),
paired by seed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.comparison.plan import Keys
from pfedlora_flwr.features.sharing.rules import NAMES
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import measures, words
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.measures import Estimate
from pfedlora_flwr.report.table import Table
from pfedlora_flwr.runs.completed import Run

STANDALONE = "= Standalone"
"""The cell of a control that receives nothing by construction, and is not run."""
CONTROLS = tuple(NAMES)[1:]
OF_CONTROLS = re.compile(f"sharing-({'|'.join(CONTROLS)})")
"""In the names of their figures."""
HEADING = "Gain from sharing"
UNEQUAL = "With and without sharing the data are not the same, so nothing is concluded."
SHARED = "With sharing."
"""Before what is concluded where there are controls, too."""


def gains(study: Study) -> Table:
    """A row a method in each scenario that has it with sharing and in a control."""
    rows = [_row(study, o) for scenario in shared(study) for o in methods(study, scenario)]
    note = (
        f"Points of test {words.gained(study.score)} at the round of the best validation, paired by"
        " seed, with their 95 % t-interval, each test by itself; below"
        f" {measures.FEWEST} seeds each seed's."
        " In brackets: how many seeds, if not `seeds`. Without sharing (`sharing=none`) every"
        " client is a federation of one, and receives what the server makes of its own uploads."
        " First state only (`sharing=start`): every client receives the first state in every round."
        f" `{STANDALONE}`: such a client receives nothing, so nothing was run, and the difference"
        " is to Standalone's runs, unless these were tuned over other values."
    )
    return Table("sharing", HEADING, rows, note)


def shared(study: Study) -> list[Keys]:
    """The scenarios in which methods share, and of which there is a control."""
    found = [s for s in study.scenarios if s.get("sharing") == "mean"]
    return [s for s in found if any(s | {"sharing": kind} in study.scenarios for kind in CONTROLS)]


def beside_controls(study: Study) -> list[tuple[Outcome, Outcome | None]]:
    """Each method that shares, with each of its controls."""
    return [
        (o, study.at(o.scenario | {"sharing": kind}, o.method))
        for scenario in shared(study)
        for o in methods(study, scenario)
        for kind in CONTROLS
    ]


def called(control: Outcome) -> str:
    """A control beside its method."""
    return f"{control.title} {NAMES[str(control.scenario['sharing'])]}"


def same_data(study: Study, scenario: Keys) -> bool:
    """Whether, seed by seed, the methods of a scenario and their controls had the same data."""
    where = [scenario]
    if scenario.get("sharing") == "mean":
        where += [scenario | {"sharing": kind} for kind in CONTROLS]
    return measures.same_data([o for there in where for o in study.in_scenario(there)])


def methods(study: Study, scenario: Keys) -> list[Outcome]:
    """The methods there, except for the references."""
    return [o for o in study.ordered(scenario) if o.method not in ("standalone", registry.POOLED)]


def _row(study: Study, ours: Outcome) -> dict[str, str]:
    seeds = len(ours.runs)
    row = {"scenario": name_of(ours.scenario), "method": ours.title, "seeds": str(seeds)}
    found = differences(study, ours)
    for kind in CONTROLS:
        is_alone = f" ({STANDALONE})" if _control(study, ours, kind)[0] else ""
        cell = words.percent(found.get(kind), sign=True, seeds=seeds)
        row[f"{NAMES['mean']} − {NAMES[kind]}, points"] = cell + is_alone
    return row


def differences(study: Study, ours: Outcome) -> dict[str, Estimate]:
    """By control the method's score minus the control's, in [−1, 1]; without those that have no
    run of a common seed."""
    found = {
        kind: measures.paired(ours.runs, _control(study, ours, kind)[1], study.score)
        for kind in CONTROLS
    }
    return {kind: difference for kind, difference in found.items() if difference}


def beside_standalone(study: Study, ours: Outcome) -> dict[str, Estimate]:
    """The scores of the method and of its controls minus Standalone's, in [−1, 1]; nothing without
    Standalone."""
    alone = study.alone(ours.scenario)
    runs = {"mean": ours.runs} | {kind: _control(study, ours, kind)[1] for kind in CONTROLS}
    found = {
        kind: measures.paired(those, alone.runs, study.score) if alone else None
        for kind, those in runs.items()
    }
    return {kind: difference for kind, difference in found.items() if difference}


def _control(study: Study, ours: Outcome, kind: str) -> tuple[bool, Mapping[int, Run]]:
    """Whether a method's control is Standalone by construction, and the control's runs, which are
    Standalone's then; of one that was tuned otherwise there are none."""
    theirs = study.at(ours.scenario | {"sharing": kind}, ours.method)
    if theirs is None or not theirs.standalone:
        return False, theirs.runs if theirs else {}
    alone = study.alone(ours.scenario)
    if alone and not alone.tuned_as(ours):
        return False, {}
    return True, alone.runs if alone else {}


def name_of(scenario: Keys) -> str:
    """The scenario without `sharing`, in which its panel or its row has all three."""
    rest = {name: value for name, value in scenario.items() if name != "sharing"}
    return words.keys(rest) or words.ONE
