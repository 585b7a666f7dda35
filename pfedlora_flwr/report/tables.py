"""The tables of a report."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence

from pfedlora_flwr.comparison.outcome import Outcome
from pfedlora_flwr.comparison.plan import Keys
from pfedlora_flwr.features.tables import TABLES
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import countings, decision, measures, paper, words
from pfedlora_flwr.report.aggregation import errors
from pfedlora_flwr.report.gains import STANDALONE, gains
from pfedlora_flwr.report.load import Study, communicates, tells_operations
from pfedlora_flwr.report.single_run import clients
from pfedlora_flwr.report.table import Table
from pfedlora_flwr.runs.completed import DIVERGED, NOT_RUN, Missing
from pfedlora_flwr.runs.output import without_folders
from pfedlora_flwr.training.metrics import BESIDE_ACCURACY, place, worth

_WIDE = 8
"""More scenarios than this become the rows of the accuracy table."""
_OF_RUN = {
    "at_best_validation": "accuracy/at_best_validation",
    "final": "accuracy/final",
    "max_test": "accuracy/max_test",
    "sampled_last": "accuracy/sampled_last",
    "sampled_highest": "accuracy/sampled_highest",
    **{name: f"{name}/at_best_validation" for name in BESIDE_ACCURACY},
    "worst": "accuracy/worst",
    "std": "accuracy/std",
    "parameters_up": "communication/parameters_up",
    "parameters_down": "communication/parameters_down",
    "flops": "flops",
    "seconds": "seconds/total",
    "partition": "partition",
}
"""The columns of runs.csv that come from a run's result, and where they stand in it; runs of older
versions lack some."""

_COST = ("sent, up and down", "operations", "seconds")
_SENT = ("parameters, full", "bytes, full", "parameters, paper", "whole run: parameters up", "down")
"""The columns of communication, which a control has none of."""


def all_tables(study: Study) -> list[Table]:
    """Every table; one without rows has nothing to say."""
    of_accuracy = (accuracy, accuracies, gains, countings.scores, countings.sampled)
    others = (costs, errors, headline, *TABLES, clients, tuning, missing)
    return [table(study) for table in (*of_accuracy, *others)]


def accuracy(study: Study) -> Table:
    """The paper's Tables 1 and 2: a row a method, a column a scenario, the paper's accuracy beside
    ours; with the verdict's score and the cost where methods are compared in one scenario."""
    methods, scenarios = registry.ordered(study.methods), study.scenarios
    of_method = dict(zip(methods, study.titles, strict=True))
    plain = [", ".join(f"{k}={v}" for k, v in s.items()) for s in scenarios]
    shown = [words.accuracy(scenario) for scenario in scenarios]
    of_scenario = list(zip(scenarios, _distinct(shown, plain), strict=True))
    compared = decision.compared(study) or scenarios
    if len(scenarios) > _WIDE:
        rows = [
            {"scenario": label}
            | {of_method[method]: _accuracy_cell(study, scenario, method) for method in methods}
            for scenario, label in of_scenario
        ]
    else:
        rows = [
            {"method": of_method[method]}
            | {label: _accuracy_cell(study, scenario, method) for scenario, label in of_scenario}
            | (_score_and_cost(study, compared[0], method) if len(compared) == 1 else {})
            for method in methods
        ]
    missing = words.uncounted(study)
    note = (
        f"Mean test accuracy of all {'evaluated ' if missing else ''}clients in percent, at the"
        " round of the best validation"
    )
    if len(study.runs) > 1:
        spread = "mean ± half-width of the 95 % t-interval over seeds"
        if study.std:
            spread = "mean ± standard deviation over seeds (95 % t-interval of the mean)"
        note += f"; {spread}, or, below three seeds, each seed's accuracy"
    note += f".{missing}"
    if study.best:
        note += (
            " Bold: a column's best mean as printed; underlined, in Markdown italic: the second."
            " Pooled and methods that lack a seed are not marked. Whether two differ, the verdict"
            " says."
        )
    if len(compared) == 1 < len(scenarios):
        note += f" The columns behind the accuracies: {words.keys(compared[0])}."
    if any(paper.accuracy(o) for o in study.outcomes if o.runs):
        note += ' In brackets: the paper\'s figure, "-" where it reports failure to converge.'
    return Table("accuracy", "Accuracy", rows, note)


def accuracies(study: Study) -> Table:
    """The other accuracies, and each method against Standalone."""
    others = any(run.result["accuracy"]["other"] for o in study.outcomes for run in o.runs.values())
    rows = []
    for o in study.in_order():
        alone = study.alone(o.scenario) if o.method != "standalone" else None
        difference = measures.paired(o.runs, alone.runs) if alone else None
        wins = measures.win_rate(o.runs, alone.runs) if alone else None
        row = {
            **words.names(o),
            "seeds": str(len(o.runs)),
            "final": words.percent(measures.over_seeds(o, "accuracy/final"), std=study.std),
            "max test": words.percent(measures.over_seeds(o, "accuracy/max_test"), std=study.std),
            "worst client": _percent(o, "accuracy/worst"),
            "std of clients": _percent(o, "accuracy/std"),
            "− Standalone, points": words.percent(difference, sign=True, seeds=len(o.runs)),
            "clients better than Standalone": "–" if wins is None else f"{100 * wins:.0f} %",
        }
        rows.append(row | ({"other predictors": _other(o)} if others else {}))
    note = (
        "Percent. `max test` chooses the round by test accuracy and is never a headline. Worst"
        " client, spread and comparison by client are of the final models; a tie is half a win;"
        " differences are paired by seed, with their 95 % t-interval, each test by itself; both"
        f" comparisons with Standalone are of the seeds in common.{words.uncounted(study)}"
    )
    if any("–" in (row["worst client"], row["std of clients"]) for row in rows):
        note += " Under masks the server knows means alone, each of the clients of its round."
    if others:
        note += (
            " Other predictors read what the server sends: they are means over the clients whose"
            " last visit was evaluated, which may be fewer than those of `final`."
        )
    return Table("accuracies", "Other accuracies", rows, note)


def costs(study: Study) -> Table:
    """Communication and computation to the target accuracy, in both conventions, and of the whole
    run."""
    rows = []
    for o in study.in_order():
        found = [c for run in o.runs.values() if (c := measures.cost(run))]
        row = {
            **words.names(o),
            "target": _target(o),
            "seeds there": f"{len(found)} of {len(o.runs)}",
            "rounds": _mean_cost(found, "rounds") if found else "not reached",
            "parameters, full": _mean_cost(found, "parameters"),
            "bytes, full": words.size(statistics.fmean(c.bytes for c in found)) if found else "–",
            "FLOP, full": _mean_cost(found, "flops"),
            "parameters, paper": _mean_cost(found, "paper_parameters"),
            "FLOP, paper": _mean_cost(found, "paper_flops"),
            "whole run: parameters up": words.count(_average(o, "communication/parameters_up")),
            "down": words.count(_average(o, "communication/parameters_down")),
            "FLOP": words.count(_average(o, "flops") if tells_operations(o) else math.nan),
            "FLOP, server": words.count(_average(o, "operations/server")),
            "seconds": words.count(_average(o, "seconds/total")),
        }
        rows.append(row | ({} if communicates(o) else dict.fromkeys(_SENT, "–")))
    note = (
        "Until the mean test accuracy, over as many clients as in the last round, first reaches the"
        " target; the mean over the seeds that reach it. `full`: up and down, all sampled clients,"
        " and all operations that they executed; `paper`: rounds × one client's upload, and"
        " rounds × 2·MAC of one image through one client's model."
    )
    return Table("costs", "Communication and computation to the target accuracy", rows, note)


def headline(study: Study) -> Table:
    """The paper's three headline claims beside ours, in the paper's own scenarios alone."""
    cells = [o for s in study.scenarios if (o := study.at(s, "pfedlora")) and o.runs]
    ours = [o for o in cells if paper.accuracy(o)]
    rows = [_claims(study, o) for o in ours]
    if rows:
        at_most = {
            "scenario": "**the paper, at most**",
            "pFedLoRA above it, points": f"**{paper.GAIN:+.2f}**",
            "FLOP, paper": f"**{paper.COMPUTATION}**",
            "parameters, paper": f"**{paper.COMMUNICATION}**",
        }
        rows.append(at_most)
    note = (
        "The baselines are the paper's six. The ratios count until both reach the target accuracy."
        " The paper does not say how it counts: `paper` is the convention recovered from the"
        " figures of its family."
    )
    return Table("headline", "The paper's headline claims", rows, note)


def tuning(study: Study) -> Table:
    """Which values were chosen for the tuned keys, and among which."""
    rows = []
    for o in study.outcomes:
        for tried in o.tried:
            run, by = tried.run, tried.validation
            told = "–" if by is None or math.isinf(by) else f"{100 * abs(by):.2f}"
            row = {
                **words.names(o),
                "candidate": words.keys(tried.candidate.tuned),
                f"validation {words.score(tried.score)}": (
                    f"– ({run.reason})" if isinstance(run, Missing) else told
                ),
                "": "**chosen**" if tried.candidate == o.chosen else "",
            }
            rows.append(row)
    note = "Chosen by the validation part's score of the first seed, never by the test part."
    return Table("tuning", "Tuned keys", rows, note)


def missing(study: Study) -> Table:
    """The runs that are not there, and why."""
    rows = []
    for o in study.outcomes:
        reasons = {seed: run.reason for seed, run in o.missing.items()}
        for reason in dict.fromkeys(reasons.values()):
            seeds = ", ".join(str(seed) for seed, why in reasons.items() if why == reason)
            rows.append({**words.names(o), "seeds": seeds, "why": reason})
    return Table("missing", "Missing runs", rows)


def runs_csv(study: Study) -> str:
    """One line a run, the numbers unrounded: for a reader's own statistics."""
    of_scenario = dict.fromkeys(k for s in study.scenarios for k in s)
    tuned = dict.fromkeys(k for o in study.outcomes if o.chosen for k in o.chosen.tuned)
    out = io.StringIO()
    writer = csv.DictWriter(
        out, [*of_scenario, "method", *tuned, "seed", *_OF_RUN], lineterminator="\n"
    )
    writer.writeheader()
    for o in study.outcomes:
        for seed, run in o.runs.items():
            keys = o.scenario | (o.chosen.tuned if o.chosen else {})
            keys = {name: without_folders(value) for name, value in keys.items()}
            left_out = {"parameters_up", "parameters_down"} if not communicates(o) else set()
            left_out |= set() if tells_operations(o) else {"flops"}
            numbers = {
                name: "" if name in left_out else measures.value(run, place)
                for name, place in _OF_RUN.items()
            }
            writer.writerow({**keys, "method": o.method, "seed": seed, **numbers})
    return out.getvalue()


def settings(study: Study) -> Keys:
    """The keys on which all runs agree and that are not at their defaults, those of the Execution
    included that decide what is merged; the data's name has a place of its own."""
    changed = [
        run.experiment.changed() | run.config.execution.merging()
        for o in study.outcomes
        for run in o.runs.values()
    ]
    common = changed[0].items() if changed else ()
    return {
        k: without_folders(v)
        for k, v in common
        if k not in ("method", "seed", "dataset") and all(c.get(k) == v for c in changed)
    }


def _accuracy_cell(study: Study, scenario: Keys, method: str) -> str:
    outcome = study.at(scenario, method)
    if outcome is None:
        return "–"
    if outcome.standalone:
        return STANDALONE
    if not outcome.runs:
        why = next((run.reason for run in outcome.missing.values()), NOT_RUN).partition(":")[0]
        return why if why.startswith(DIVERGED) else f"– ({why})"
    mark = _marks(study, scenario, "accuracy").get(method, "")
    text = f"{mark}{words.percent(measures.accuracy(outcome.runs), std=study.std)}{mark}"
    if outcome.missing:
        text += f" ({len(outcome.runs)} of {len(outcome.runs) + len(outcome.missing)} seeds"
        text += f", {outcome.diverged} diverged)" if outcome.diverged else ")"
    printed = paper.accuracy(outcome)
    return text + (f" [{printed}]" if printed else "")


def _score_and_cost(study: Study, scenario: Keys, method: str) -> dict[str, str]:
    """The further cells of a method's accuracy, of whole runs."""
    if not (o := study.at(scenario, method)) or not o.runs:
        return {}
    mark = _marks(study, scenario, study.score).get(method, "")
    scored = measures.over_seeds(o, f"{place(study.score)}/at_best_validation")
    score = f"{mark}{words.percent(scored, std=study.std)}{mark}"
    sent = sum(_average(o, f"communication/bytes_{way}") for way in ("up", "down"))
    flops = _average(o, "flops") if tells_operations(o) else math.nan
    found = {} if study.score == "accuracy" else {words.score(study.score): score}
    cost = (words.size(sent) if communicates(o) else "–", words.count(flops))
    return found | dict(zip(_COST, (*cost, words.count(_average(o, "seconds/total"))), strict=True))


def _marks(study: Study, scenario: Keys, score: str) -> dict[str, str]:
    """What stands before and behind the best and the second-best mean there, as printed, by
    method."""
    means = {
        o.method: round(worth(score, found.mean), 4)
        for o in study.in_scenario(scenario)
        if study.best and o.method != registry.POOLED and not o.missing
        if (found := measures.over_seeds(o, f"{place(score)}/at_best_validation"))
    }
    first = dict(zip(sorted({*means.values()}, reverse=True), ("**", "*"), strict=False))
    return {method: first.get(mean, "") for method, mean in means.items() if len(means) > 1}


def _claims(study: Study, ours: Outcome) -> dict[str, str]:
    """A scenario's row of the headline table."""
    baselines = [o for o in study.in_scenario(ours.scenario) if o.method in paper.BASELINES]
    best = max(baselines, key=lambda o: _average(o, "accuracy/at_best_validation"), default=None)
    proto = study.at(ours.scenario, "fedproto")
    ratios = measures.ratios(proto.runs, ours.runs) if proto else None
    why = "FedProto not run" if not proto or not proto.runs else "target not reached by both"

    def ratio(name: str) -> str:
        if ratios is None:
            return f"– ({why})"
        return "–" if math.isnan(getattr(ratios, name)) else f"{getattr(ratios, name):.2f}"

    return {
        "scenario": words.keys(ours.scenario) or words.ONE,
        "target": _target(ours),
        "best baseline": best.title if best else "–",
        "pFedLoRA above it, points": (
            words.percent(measures.paired(ours.runs, best.runs), sign=True) if best else "–"
        ),
        "FedProto ÷ pFedLoRA: FLOP, full": ratio("flops"),
        "FLOP, paper": ratio("paper_flops"),
        "parameters, full": ratio("parameters"),
        "parameters, paper": ratio("paper_parameters"),
    }


def _other(outcome: Outcome) -> str:
    """The accuracies of the further predictors that all seeds have."""
    found = [run.result["accuracy"]["other"] for run in outcome.runs.values()]
    names = [name for name in found[0] if all(name in other for other in found)] if found else []
    means = {name: 100 * statistics.fmean(other[name] for other in found) for name in names}
    return ", ".join(f"{name} {mean:.2f}" for name, mean in means.items()) or "–"


def _distinct(labels: Sequence[str], names: Sequence[str]) -> list[str]:
    """The labels; where two are the same, the names behind them: headings must differ."""
    return [
        name if labels.count(label) > 1 else label
        for label, name in zip(labels, names, strict=True)
    ]


def _target(outcome: Outcome) -> str:
    """The accuracy that costs are counted to."""
    return f"{100 * next(iter(outcome.runs.values())).to_target['accuracy']:g} %"


def _percent(outcome: Outcome, place: str) -> str:
    """The mean over seeds of a share that not every run knows, in percent."""
    found = measures.over_seeds(outcome, place)
    return f"{100 * found.mean:.2f}" if found else "–"


def _average(outcome: Outcome, place: str) -> float:
    """The mean over seeds of a number in the result."""
    return statistics.fmean(measures.value(run, place) for run in outcome.runs.values())


def _mean_cost(costs: Sequence[measures.Cost], name: str) -> str:
    return words.count(statistics.fmean(getattr(cost, name) for cost in costs)) if costs else "–"
