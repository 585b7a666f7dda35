"""The first lines of a report: one sentence that the numbers support, and what was run, when, with
what and on what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data import registry as sources
from pfedlora_flwr.errors import UserError, counted
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import decision, gains, measures, sites, words
from pfedlora_flwr.report.data_figures import data_of
from pfedlora_flwr.report.decision import Finding
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.measures import FEWEST
from pfedlora_flwr.report.own_code import of_several_codes, own_code
from pfedlora_flwr.runs.completed import Run
from pfedlora_flwr.runs.data_name import own_in_words
from pfedlora_flwr.runs.provenance import commits, read_about
from pfedlora_flwr.training.metrics import place

_VERSIONS = ("pfedlora-flwr", "flwr", "torch", "python")
_NOTES = 10
"""On the data, that a report lists; `result.json` of each run has its own."""
_UNKNOWN = "not recorded"


def conclusion(study: Study, found: Sequence[Finding] | None = None) -> str:
    """What the numbers say, and whom they leave out. found: the study's findings, if they are known
    already."""
    return " ".join(paragraphs(study, decision.findings(study) if found is None else found))


def paragraphs(study: Study, found: Sequence[Finding]) -> list[str]:
    """The same, the verdict first."""
    told = [*_compared(study, found), of_several_codes(study), _diverged(study)]
    return [text.strip() for text in (*told, words.uncounted(study)) if text]


def _compared(study: Study, found: Sequence[Finding]) -> list[str]:
    """What the intervals of the paired differences say; below three seeds nothing but the values.
    Accuracy is that at best validation."""
    compared = decision.compared(study)
    if not all(measures.same_data(study.in_scenario(scenario)) for scenario in compared):
        return ["Methods of a scenario did not have the same data, so nothing is concluded."]
    if not compared and not all(gains.same_data(study, s) for s in gains.shared(study)):
        return [gains.UNEQUAL]
    if not compared and not found:
        return [_alone(study)]
    run = {o.method for scenario in compared for o in study.in_scenario(scenario) if o.runs}
    if len(run) < 2 and not found:
        return ["Of no two methods runs are completed, so nothing is concluded."]
    one = len({str(f.scenario) for f in found}) == 1
    if not any(f.verdict for f in found):
        return [_few(found if one else []), sites.sentence(study, found) if found else ""]
    text = (decision.in_one if one else decision.in_several)(study, found)
    rest = [s for s in study.scenarios if s not in compared and study.in_scenario(s)]
    if compared and not all(map(study.communicates, rest)):
        text[0] = f"{gains.SHARED} {text[0]}"
    if one:
        text += [decision.pooled(study, found), sites.sentence(study, found)]
    return text


def _few(found: Sequence[Finding]) -> str:
    """The sentence where no difference has seeds enough."""
    values = {f.reference: f.theirs for f in found} | {f.ours.title: f.ours for f in found}
    score = found[0].score if found else "accuracy"
    by_seed = "; ".join(f"{name} {_by_seed(o, score)}" for name, o in values.items())
    gains = "; ".join(f"{f.ours.title} {f.in_points}" for f in found)
    return f"With fewer than {FEWEST} seeds in common nothing is claimed; " + (
        f"test {words.score(score)} by seed: {by_seed}. In points of {words.gained(score)}, against"
        f" {found[0].base}: {gains}."
        if found
        else "the values are in the tables."
    )


def _diverged(study: Study) -> str:
    """A sentence on the runs that diverged there; else nothing."""
    scenarios = decision.compared(study) or study.scenarios
    told = []
    for method, title in zip(registry.ordered(study.methods), study.titles, strict=True):
        found = [o for scenario in scenarios if (o := study.at(scenario, method))]
        if gone := sum(o.diverged for o in found):
            total = sum(len(o.runs) + len(o.missing) for o in found)
            told.append(f"{title} diverged in {gone} of {total}")
    unit = "seeds" if len(scenarios) == 1 else "runs"
    return f" {words.listed(told)} {unit}, which are left out." if told else ""


def facts(study: Study) -> list[tuple[str, str]]:
    """What was run: label and text. What differs between runs is listed, what no run has recorded
    is said to be so."""
    runs = study.runs
    experiments = [run.experiment for run in runs]
    about = [read_about(run.directory.config) for run in runs]
    missing = {
        run.path or (index, seed)
        for index, o in enumerate(study.outcomes)
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
    if folds := max((e.split.folds or 1 for e in experiments), default=1) - 1:
        of_seeds += f"; each is the mean of {folds + 1} folds"
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
        *([("Versions of nodes", nodes)] if (nodes := _of_nodes(runs)) else []),
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
        if worst is None:
            end = "under masks no client's own is known"
        else:
            end = f"at the end the worst client has {100 * worst:.2f} %"
        return (
            f"{name} reaches {100 * run.accuracy:.2f} % mean test accuracy over"
            f" {counted(accuracy['evaluated'], 'client')} (one run, after round"
            f" {accuracy['best_validation_round']} of {e.rounds}, the best by validation); {end}."
        )
    return (
        f"{name} reaches {words.percent(measures.accuracy(one.runs))} % mean test accuracy, over"
        f" {len(one.runs)} seeds; there is no other method to compare it with."
    )


def _by_seed(outcome: Outcome, score: str) -> str:
    where = f"{place(score)}/at_best_validation"
    told = (measures.value(run, where) for _, run in sorted(outcome.runs.items()))
    found = ", ".join("–" if value is None else f"{100 * value:.2f}" for value in told)
    return f"{found} {words.unit(score)}" if found else "–"


def _data(run: Run) -> str:
    """`CIFAR-10: 60,000 images of 32 × 32 × 3, 10 classes`, as far as it is known here, or the
    sites' own data as they told of it. A path shows its last part alone."""
    if own := own_in_words(run.result):
        return own
    e, known = run.experiment, []
    try:
        if not run.setup.needs_download:
            named = sources.find(e.dataset).shape  # which samples it has
            dataset = datasets.load(e.dataset, run.setup.reading) if named else data_of(run)[0]
            kind, count = dataset.kind, len(dataset.labels)
            known.append(f"{count:,} {kind.unit} of {kind.in_words(dataset.shape)}")
        known.append(f"{run.setup.task.classes} classes")
    except UserError:
        known.append("the data that its clients had is not here")
    return f"{sources.without_path(e.dataset)}: {', '.join(known)}"


def _versions(about: dict[str, Any]) -> str:
    of = about.get("versions") or {}
    return ", ".join(f"{name} {of[name]}" for name in _VERSIONS if of.get(name))


def _of_nodes(runs: Iterable[Run]) -> str:
    """`pfedlora-flwr 0.3.0, flwr 1.41.0, torch 2.11.0 (3 nodes)`; empty of simulations."""
    told = (each for run in runs for each in run.result.get("versions", {}).items())
    return "; ".join(f"{v} ({counted(nodes, 'node')})" for v, nodes in dict.fromkeys(told))


def _machine(machine: dict[str, Any]) -> str:
    """`AMD EPYC 7B13, 16 usable cores, 64 GB; NVIDIA H100`."""
    if not machine:
        return ""
    gpus = machine.get("gpus") or ()
    each = {gpu: gpus.count(gpu) for gpu in gpus}
    cores, memory = counted(machine["cores"], "usable core"), f"{machine['memory'] / 1e9:.0f} GB"
    of_gpus = (f"{count} × {gpu}" if count > 1 else gpu for gpu, count in each.items())
    return "; ".join([f"{machine['processor']}, {cores}, {memory}", *of_gpus])


def _in_one_line(notes: Iterable[str]) -> str:
    """Each once, and how many more there are than can be listed."""
    each = list(dict.fromkeys(notes))
    more = f"; and {len(each) - _NOTES} more" if len(each) > _NOTES else ""
    return "; ".join(each[:_NOTES]) + more


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text or _UNKNOWN for text in texts)) or _UNKNOWN
