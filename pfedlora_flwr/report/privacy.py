"""The report's table of what runs with differential privacy have spent."""

from __future__ import annotations

from collections.abc import Iterable

from pfedlora_flwr.report import words
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.table import Table
from pfedlora_flwr.runs.completed import Run
from pfedlora_flwr.runs.rows import DP, EarlierRun

_LEVELS = {"user": "client", "record": "record"}


def table(study: Study) -> Table:
    """A row a method in each scenario that has a run with dp."""
    rows = []
    for o in study.in_order():
        spent = [dp for run in o.runs.values() if (dp := _dp(run))]
        if not spent:
            continue
        rows.append(
            words.names(o)
            | {
                "seeds": str(len(spent)),
                "level": _each(_LEVELS[dp["level"]] for dp in spent),
                "ε": _each(_number(dp["epsilon"], "∞") for dp in spent),
                "δ": _each(_number(dp["delta"]) for dp in spent),
                "noise z": _each(_number(dp["noise"], "by client") for dp in spent),
                "clip S": _each(_number(dp["clip"]) for dp in spent),
                "participations, at most": _each(str(dp["participations_max"]) for dp in spent),
                "earlier runs": _each(", ".join(map(_spent, dp["earlier"])) or "–" for dp in spent),
            }
        )
    note = (
        "Differential privacy of whole clients against whoever sees the shared states, or of single"
        " training records against whoever sees the uploads. ε is the largest of a run's clients."
        " Where seeds differ, each value is listed. Runs on the same data add up: all seeds and"
        " methods here, runs that are not listed, as one that was stopped, and the `earlier runs`"
        " that one of them replaced in its folder, which its ε does not count."
        " `privacy.not_covered` in result.json lists what ε does not cover."
    )
    return Table("privacy", "Differential privacy", rows, note)


def _dp(run: Run) -> DP | None:
    privacy = run.result.get("privacy")
    return privacy["dp"] if privacy else None


def _spent(run: EarlierRun) -> str:
    """ε, δ and level of a run that was replaced, as far as its entry says them."""
    if run.get("level") == "none":
        return "without dp, ε=∞"
    level = _LEVELS[run["level"]] if "level" in run else ""
    if "epsilon" not in run or (run["epsilon"] is None and run["noise"] != 0):
        return f"{level} ε not known".strip()
    return f"{level} ε={_number(run['epsilon'], '∞')} at δ={_number(run['delta'])}"


def _number(value: float | None, none: str = "–") -> str:
    return none if value is None else f"{value:.4g}"


def _each(texts: Iterable[str]) -> str:
    """The different ones, in their order."""
    return "; ".join(dict.fromkeys(texts))
