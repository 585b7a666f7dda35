"""The report's note on user code that the runs used."""

from __future__ import annotations

from collections.abc import Iterable

from pfedlora_flwr.errors import some
from pfedlora_flwr.report import words
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.runs.code_copy import changed, codes_of
from pfedlora_flwr.runs.completed import OTHER_CODE, Run

_DIGITS = 10
"""Of a SHA-256."""


def own_code(study: Study) -> str:
    """The files and their hashes; then the runs that are not of one code, and those that other code
    did than is here now. Empty where no run has any code of its own."""
    runs = study.runs
    shown = dict.fromkeys(
        f"{path} {digest[:_DIGITS]}" for run in runs for path, digest in run.code.items()
    )
    if not shown:
        return ""
    told = [f"SHA-256 of {some(list(shown))}"]
    left_out = [
        f"{words.names(o)['method']} seed {seed}"
        for o in study.outcomes
        for seed, run in o.missing.items()
        if run.status == OTHER_CODE
    ]
    candidates = [
        " ".join(filter(None, words.names(o).values()))
        for o in study.outcomes
        if len({str(t.run.code) for t in o.tried if isinstance(t.run, Run)}) > 1
    ]
    told += _named("other code did runs that are left out", left_out)
    told += _named("other code did some of the tuned candidates", candidates)
    told += _named(
        "went on with changed code", [_name(r) for r in runs if len(codes_of(r.directory)) > 1]
    )
    told += _named(
        "done before the code here was changed",
        [_name(run) for run in runs if changed(run.directory, run.experiment.flat())],
    )
    return "; ".join(told)


def of_several_codes(study: Study) -> str:
    """A sentence where methods of a scenario were not run, with one seed, by the same code of the
    user's, as far as both use it; else nothing."""
    files = set[str]()
    for scenario in study.scenarios:
        hashes: dict[tuple[int, str], set[str]] = {}
        for o in study.in_scenario(scenario):
            for seed, run in o.runs.items():
                for path, digest in run.code.items():
                    hashes.setdefault((seed, path), set()).add(digest)
        files |= {path for (_, path), found in hashes.items() if len(found) > 1}
    if not files:
        return ""
    return (
        f" Not all were run by the same version of your own code ({some(sorted(files))}):"
        " what differs may be the code's."
    )


def _name(run: Run) -> str:
    return f"{run.experiment.method} seed {run.experiment.seed}"


def _named(what: str, names: Iterable[str]) -> list[str]:
    distinct = list(dict.fromkeys(names))
    return [f"{what}: {some(distinct)}"] if distinct else []
