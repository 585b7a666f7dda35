"""What averaging missed in each round of methods that exchange LoRA: the field `aggregation_error`
as a table and a figure."""

from __future__ import annotations

import statistics
from pathlib import Path

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.comparison.plan import Keys
from pfedlora_flwr.comparison.spec import slug
from pfedlora_flwr.report import words
from pfedlora_flwr.report.figures import Picture
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.style import legend, of_outcome, panel, save
from pfedlora_flwr.report.table import Table

_NAME = "aggregation_error"


def errors(study: Study) -> Table:
    """A row for each outcome whose rounds have the field."""
    there = [
        o for o in study.in_order() if any(_NAME in r for n in o.runs.values() for r in n.rounds)
    ]
    note = (
        "What the server's merge missed of the mean of the uploads' products, relative to what the"
        " uploads changed: ‖ΔW* − ΔW after‖ / ‖ΔW* − ΔW before‖ with ΔW* = Σ p s B A. The mean over"
        " seeds. – where it means nothing: FedSA-LoRA and FedALT have no common product, under"
        " secure aggregation or differential privacy the server tells nothing of single uploads,"
        " and a control merges nothing of other clients."
    )
    return Table(_NAME, "Aggregation error of LoRA's factors", [_row(o) for o in there], note)


def pictures(study: Study, folder: Path) -> list[Picture]:
    """The field by round, a figure for each scenario that has it."""
    return [
        _picture(scenario, outcomes, folder)
        for scenario in study.scenarios
        if (outcomes := [o for o in study.ordered(scenario) if any(_by_round(o).values())])
    ]


def _row(outcome: Outcome) -> dict[str, str]:
    by_round = _by_round(outcome)
    found = [value for values in by_round.values() for value in values]
    if not found:
        ends = mean = largest = "–"
    else:
        ends = " → ".join(
            f"{statistics.fmean(by_round[round]):.3g}" for round in (min(by_round), max(by_round))
        )
        mean, largest = f"{statistics.fmean(found):.3g}", f"{max(found):.3g}"
    return {
        **words.names(outcome),
        "seeds": str(len(outcome.runs)),
        "mean over rounds": mean,
        "first round → last": ends,
        "largest": largest,
    }


def _picture(scenario: Keys, outcomes: list[Outcome], folder: Path) -> Picture:
    with panel((3.6, 2.8)) as (figure, axis):
        for outcome in outcomes:
            colour, marker, line = of_outcome(outcome)
            points = {round: statistics.fmean(v) for round, v in _by_round(outcome).items()}
            axis.plot(
                list(points), list(points.values()), color=colour, marker=marker, linestyle=line
            )
        axis.set_xlabel("round")
        axis.set_ylabel("aggregation error")
        axis.set_ylim(bottom=0)
        axis.set_title(words.keys(scenario))
        legend(figure, outcomes)
        path = save(figure, folder, f"{_NAME}_{slug(scenario) or 'all'}")
    titles = ", ".join(o.title for o in outcomes)
    caption = (
        f"Aggregation error by round{words.of(scenario)}: the mean over seeds of {titles}. 0 is"
        " an exact mean of the products."
    )
    return Picture(path, caption)


def _by_round(outcome: Outcome) -> dict[int, list[float]]:
    """The values of the seeds, by round; rounds in which no seed has one are left out."""
    found: dict[int, list[float]] = {}
    for run in outcome.runs.values():
        for row in run.rounds:
            value = row.get("aggregation_error")
            if value is not None:
                found.setdefault(row["round"], []).append(value)
    return found
