"""The first lines of a report: one sentence that the numbers support, and what was run, when, with
what and on what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.comparison.plan import Keys
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data import registry as sources
from pfedlora_flwr.data.local import task_of
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.errors import UserError, counted
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import measures, words
from pfedlora_flwr.report.data_figures import data_of
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.measures import FEWEST, Estimate
from pfedlora_flwr.report.own_code import of_several_codes, own_code
from pfedlora_flwr.runs.completed import Run
from pfedlora_flwr.runs.data_name import own_in_words
from pfedlora_flwr.runs.provenance import commits, read_about

_VERSIONS = ("pfedlora-flwr", "flwr", "torch", "python")
_NOTES = 10
"""On the data, that a report lists; `result.json` of each run has its own."""
_UNKNOWN = "not recorded"


@dataclass(frozen=True)
class _Difference:
    """A method against the reference, in one scenario."""

    method: str
    by: Estimate

    @property
    def in_words(self) -> str:
        low, high = sorted(
            100 * abs(self.by.mean + side * (self.by.half or 0.0)) for side in (-1, 1)
        )
        seeds = len(self.by.values)
        return (
            f"by {100 * abs(self.by.mean):.2f} points (95 % interval {low:.2f} to {high:.2f},"
            f" {seeds} seeds)"
        )


def conclusion(study: Study) -> str:
    """What the numbers say, and whom they leave out."""
    several = of_several_codes(study)
    return _compared(study) + several + _diverged(study) + words.uncounted(study)


def _compared(study: Study) -> str:
    """What the intervals of the paired differences say; below three seeds nothing but the values.
    Accuracy is that at best validation."""
    compared = _scenarios(study)
    if not compared:
        return _alone(study)
    if not all(measures.same_data(study.in_scenario(scenario)) for scenario in compared):
        return (
            "The methods of a scenario did not all have the same partition, so nothing is"
            " concluded."
        )
    run = {o.method for scenario in compared for o in study.in_scenario(scenario) if o.runs}
    if len(run) < 2:
        return "Of no two methods runs are completed, so nothing is concluded."
    reference = "standalone" if "standalone" in run else registry.ordered(run)[0]
    found = [_differences(study.ordered(scenario), reference) for scenario in compared]
    if not any(d.by.half is not None for differences in found for d in differences):
        only = study.ordered(compared[0]) if len(compared) == 1 else []
        values = (
            "; ".join(f"{o.title} {_by_seed(o)} %" for o in only) or "the values are in the tables"
        )
        return (
            f"With fewer than {FEWEST} seeds in common nothing is claimed; test accuracy by seed:"
            f" {values}."
        )
    name = next(o.title for o in study.outcomes if o.method == reference)
    text = _in_one(found[0], name) if len(found) == 1 else _in_several(found, name)
    rest = [s for s in study.scenarios if s not in compared and study.in_scenario(s)]
    if not all(map(study.communicates, rest)):
        return f"With sharing: {text}"
    return text[0].upper() + text[1:]


def _scenarios(study: Study) -> list[Keys]:
    """Those in which methods are compared: not those of controls, if there are others."""
    several = [scenario for scenario in study.scenarios if len(study.in_scenario(scenario)) > 1]
    return [scenario for scenario in several if study.communicates(scenario)] or several


def _diverged(study: Study) -> str:
    """A sentence on the runs that diverged there; else nothing."""
    scenarios = _scenarios(study) or study.scenarios
    told = []
    for method, title in zip(registry.ordered(study.methods), study.titles, strict=True):
        found = [o for scenario in scenarios if (o := study.at(scenario, method))]
        if gone := sum(o.diverged for o in found):
            total = sum(len(o.runs) + len(o.missing) for o in found)
            told.append(f"{title} diverged in {gone} of {total}")
    unit = "seeds" if len(scenarios) == 1 else "runs"
    return f" {_listed(told)} {unit}, which are left out." if told else ""


def facts(study: Study) -> list[tuple[str, str]]:
    """What was run: label and text. What differs between runs is listed, what no run has recorded
    is said to be so."""
    runs = study.runs
    experiments = [run.experiment for run in runs]
    about = [read_about(run.directory.config) for run in runs]
    missing = {
        run.path or (place, seed)
        for place, o in enumerate(study.outcomes)
        for seed, run in o.missing.items()
    }
    total = len(runs) + len(missing)
    seeds = sorted({e.seed for e in experiments})
    methods = ", ".join(study.titles)
    every = [entry for found in about for entry in found.get("history", ())]
    dates = sorted({str(entry.get("date", ""))[:10] for entry in every} - {""})
    of_seeds = (
        f", {'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}" if seeds else ""
    )
    code = own_code(study)
    notes = _in_one_line(n for run in runs for n in run.result.get("data_notes") or ())
    return [
        ("Data", _distinct(map(_data, runs))),
        *([("Of the data", notes)] if notes else []),
        *([("Before the runs", _in_one_line(study.said))] if study.said else []),
        ("Methods", methods),
        ("Runs", f"{len(runs)} of {total} completed{of_seeds}"),
        *([("Visits", visits)] if (visits := _visits(runs)) else []),
        ("Date", " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else _UNKNOWN),
        ("Versions", _distinct(map(_versions, about))),
        ("Commit", _distinct(commits(about))),
        *([("Own code", code)] if code else []),
        ("Machine", _distinct(_machine(found.get("machine") or {}) for found in about)),
    ]


def _visits(runs: Sequence[Run]) -> str:
    """How many visits of clients were not as they should be; empty where all were."""
    rows = [row for run in runs for row in run.rounds]
    of, admitted = (sum(len(row[name]) for row in rows) for name in ("sampled", "admitted"))
    lost = sum(run.result.get("lost", 0) for run in runs)
    told = [f"{of - admitted} of {of} did not count"] if admitted < of else []
    if lost:
        told.append(f"{lost} began with an initial model, since the client had lost its own")
    return "; ".join(told)


def _differences(outcomes: Sequence[Outcome], reference: str) -> list[_Difference]:
    """Each method against the reference; none where that is not in the scenario."""
    base = next((o for o in outcomes if o.method == reference), None)
    pairs = (
        [(o.title, measures.paired(o.runs, base.runs)) for o in outcomes if o is not base]
        if base
        else []
    )
    return [_Difference(title, by) for title, by in pairs if by]


def _in_one(found: Sequence[_Difference], reference: str) -> str:
    """The sentence for a single scenario."""
    parts = []
    for side, sign in (("above", 1), ("below", -1)):
        there = [d for d in found if d.by.sign == sign]
        if len(there) == 1:
            parts.append(f"{there[0].method} is {side} {reference} {there[0].in_words}")
        elif there:
            parts.append(
                f"{side} {reference} are {_listed([f'{d.method} {d.in_words}' for d in there])}"
            )
    same = [d for d in found if d.by.constant]
    level = [d.method for d in found if d.by.half is not None and d.by.sign == 0 and d not in same]
    few = [d.method for d in found if d.by.half is None]
    if not parts and not same:
        seeds = min(len(d.by.values) for d in found if d.by.half is not None)
        parts.append(
            f"no method is distinguishable from {reference}: each 95 % interval of the differences"
            f" holds 0 ({seeds} seeds)"
        )
    elif level:
        parts.append(
            f"{_listed(level)} {'is' if len(level) == 1 else 'are'} not distinguishable from"
            f" {'it' if parts else reference}"
        )
    parts += [
        f"{d.method} differs from {reference} by the same {100 * d.by.mean:+.2f} points in all"
        f" {len(d.by.values)} seeds: no claim"
        for d in same
    ]
    if few:
        parts.append(
            f"of {_listed(few)} nothing is claimed, with fewer than {FEWEST} seeds in common"
        )
    text = "; ".join(parts)
    tested = [d for d in found if d.by.half is not None]
    if any(d.by.sign for d in tested):
        held = [d.method for d in tested if measures.bonferroni(d.by, len(tested)).sign]
        text += _together(len(tested), held)
    return f"{text}."


def _in_several(found: Sequence[Sequence[_Difference]], reference: str) -> str:
    """The sentence for several scenarios: in how many each method is above and below."""
    tested = [d for differences in found for d in differences if d.by.half is not None]
    signs = _signs((d.method, d.by) for d in tested)
    told = [
        f"{m} is above in {s.count(1)} and below in {s.count(-1)} of {len(s)}"
        for m, s in signs.items()
        if any(s)
    ]
    if not told:
        where = f"in any of the {len(found)} scenarios (95 % intervals of the paired differences)"
        text = f"no method is distinguishable from {reference} {where}"
    else:
        text = (
            f"against {reference}, by 95 % intervals of the paired differences in each scenario:"
            f" {'; '.join(told)}"
        )
        text += "; the others are not distinguishable from it" if len(told) < len(signs) else ""
    if same := sum(d.by.constant for d in tested):
        text += f"; {same} differences are the same in all seeds, and no claim"
    if few := sum(d.by.half is None for differences in found for d in differences):
        text += f"; {few} differences have fewer than {FEWEST} seeds, and no claim"
    if told:
        wider = _signs((d.method, measures.bonferroni(d.by, len(tested))) for d in tested)
        text += _together(
            len(tested),
            [
                f"{m} above in {s.count(1)} and below in {s.count(-1)}"
                for m, s in wider.items()
                if any(s)
            ],
        )
    return f"{text}."


def _signs(found: Iterable[tuple[str, Estimate]]) -> dict[str, list[int]]:
    """By method those of its differences."""
    signs: dict[str, list[int]] = {}
    for method, by in found:
        signs.setdefault(method, []).append(by.sign)
    return signs


def _together(tests: int, held: Sequence[str]) -> str:
    """Of claims by so many tests, those that hold together."""
    if tests == 1:
        return ""
    return (
        f". Each test is by itself; with Bonferroni correction for the {tests} of them:"
        f" {', '.join(held) or 'none'}"
    )


def _alone(study: Study) -> str:
    """The sentence where there is nothing to compare with."""
    outcomes = [o for o in study.outcomes if o.runs]
    if not outcomes:
        return "No run is completed, so nothing is concluded."
    if len(outcomes) > 1:
        return (
            "Each scenario has one method, so none is compared with another; the accuracies are in"
            " the tables."
        )
    [one] = outcomes
    run, name = next(iter(one.runs.values())), one.title
    if len(one.runs) == 1:
        accuracy, e = run.result["accuracy"], run.experiment
        worst = accuracy["worst"]
        end = (
            "under masks no client's own is known"
            if worst is None
            else f"at the end the worst client has {100 * worst:.2f} %"
        )
        return (
            f"{name} reaches {100 * run.accuracy:.2f} % mean test accuracy over"
            f" {counted(accuracy['evaluated'], 'client')} (one run, after round"
            f" {accuracy['best_validation_round']} of {e.rounds}, the best by validation); {end}."
        )
    return (
        f"{name} reaches {words.percent(measures.accuracy(one.runs))} % mean test accuracy, over"
        f" {len(one.runs)} seeds; there is no other method to compare it with."
    )


def _by_seed(outcome: Outcome) -> str:
    found = [f"{100 * run.accuracy:.2f}" for _, run in sorted(outcome.runs.items())]
    return ", ".join(found) or "–"


def _data(run: Run) -> str:
    """`CIFAR-10: 60,000 images of 32 × 32 × 3, 10 classes`, as far as it is known here, or the
    sites' own data as they told of it. A path shows its last part alone."""
    if own := own_in_words(run.result):
        return own
    e, path, known = run.experiment, run.data_path, []
    try:
        if not datasets.needs_download(e.dataset, how := Reading.of(e, path)):
            named = sources.find(e.dataset).shape  # which samples it has
            dataset = datasets.load(e.dataset, how) if named else data_of(run)[0]
            kind, count = dataset.kind, len(dataset.labels)
            known.append(f"{count:,} {kind.unit} of {kind.in_words(dataset.shape)}")
        known.append(f"{task_of(e, path).classes} classes")
    except UserError:
        known.append("the data that its clients had is not here")
    return f"{sources.without_path(e.dataset)}: {', '.join(known)}"


def _versions(about: dict[str, Any]) -> str:
    of = about.get("versions") or {}
    return ", ".join(f"{name} {of[name]}" for name in _VERSIONS if of.get(name))


def _machine(machine: dict[str, Any]) -> str:
    """`AMD EPYC 7B13, 16 usable cores, 64 GB; NVIDIA H100`."""
    if not machine:
        return ""
    gpus = machine.get("gpus") or ()
    return (
        f"{machine['processor']}, {counted(machine['cores'], 'usable core')},"
        f" {machine['memory'] / 1e9:.0f} GB"
        + "".join(
            f"; {gpus.count(gpu)} × {gpu}" if gpus.count(gpu) > 1 else f"; {gpu}"
            for gpu in dict.fromkeys(gpus)
        )
    )


def _in_one_line(notes: Iterable[str]) -> str:
    """Each once, and how many more there are than can be listed."""
    each = list(dict.fromkeys(notes))
    more = f"; and {len(each) - _NOTES} more" if len(each) > _NOTES else ""
    return "; ".join(each[:_NOTES]) + more


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text or _UNKNOWN for text in texts)) or _UNKNOWN


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
