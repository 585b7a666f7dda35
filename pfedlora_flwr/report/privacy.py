"""The report's tables of what was sent, who could see it, and what differential privacy has
spent."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.data.split import SAID
from pfedlora_flwr.features.records import read_by_server
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import words
from pfedlora_flwr.report.load import Study, communicates
from pfedlora_flwr.report.table import Table
from pfedlora_flwr.runs.clear import in_words
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


def sent(study: Study) -> Table:
    """A row a method in each scenario."""
    rows = [
        words.names(o)
        | {
            "clients send": _of_method(o),
            "MB sent by all": _each(
                f"{run.result['communication']['bytes_up'] / 1e6:.3g}" for run in o.runs.values()
            ),
            "the server reads": _each(map(_read, o.runs.values())),
            "noise": _each(map(_noise, o.runs.values())),
        }
        for o in study.in_order()
        if communicates(o)
    ]
    return Table("sent", "Sent and read", rows)


def known(study: Study) -> Table:
    """What else is known of the runs: a row each, with all different answers."""
    told = {
        "test samples": _test_rows,
        "joined or left": _members,
        "begun from": _start,
        "told in the clear": _clear,
        "not covered": _not_covered,
    }
    found = {what: _each(filter(None, map(of, study.runs))) for what, of in told.items()}
    rows = [{"what": what, "as the runs say": said} for what, said in found.items() if said]
    return Table("known", "What else can be known", rows)


def _of_method(o: Outcome) -> str:
    """What its clients send, in its own words; of a user's own method that is its code's matter."""
    e = next(iter(o.runs.values())).experiment
    return "what its code says" if ":" in e.method else registry.find(e.method).shares


def _read(run: Run) -> str:
    privacy, sends = run.result.get("privacy"), run.result["communication"]["bytes_up"]
    return read_by_server(privacy) if privacy and sends else "nothing" if privacy else "not known"


def _noise(run: Run) -> str:
    dp = _dp(run)
    if dp is None:
        return "none"
    return f"ε = {_number(dp['epsilon'], '∞')} of a {_LEVELS[dp['level']]} at δ = {dp['delta']:g}"


def _test_rows(run: Run) -> str:
    split = run.experiment.split
    said = SAID[split.kind].format(column=split.column)
    shares = f"{':'.join(map(str, split.shares))} for training, validation and tests"
    return f"{shares}, {said or 'by chance, stratified by class'}"


def _members(run: Run) -> str:
    joined, left = run.result.get("joined", {}), run.result.get("left", {})
    told = [f"client {k} joined after round {r}" for k, r in joined.items()]
    told += [f"client {k} left after round {r}" for k, r in left.items()]
    told += [
        f"begun anew without client {b['without']} after round {b['round']}"
        for b in run.result.get("begun_from", ())
    ]
    return ", ".join(told)


def _start(run: Run) -> str:
    if not (told := run.result.get("started_from")):
        return ""
    return f"{Path(told['place']).name}, {told['method']} after round {told['round']}"


def _clear(run: Run) -> str:
    return in_words(run.experiment) if run.experiment.hides_clients else ""


def _not_covered(run: Run) -> str:
    privacy = run.result.get("privacy")
    return "; ".join(privacy["not_covered"]) if privacy else ""


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
