"""The tables of a report: built once, written as Markdown, CSV and HTML."""

from __future__ import annotations

import csv
import html
import io
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import measures, paper, words
from pfedlora_flwr.report.load import Keys, Outcome, Study
from pfedlora_flwr.runs.result import to_target
from pfedlora_flwr.runs.rows import Result

_WIDE = 8
"""More scenarios than this become the rows of the accuracy table."""


@dataclass(frozen=True)
class Table:
    """Cells are text, `**bold**` where the best is marked. name: the file's."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """A heading, the table in GitHub's form, and the note."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"## {self.title}\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")

    def csv(self) -> str:
        """Comma-separated, without marks."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([[cell.replace("**", "") for cell in line] for line in (self.columns, *self.rows)])
        return out.getvalue()

    def html(self) -> str:
        """The same for a page."""

        def line(tag: str, cells: Sequence[str]) -> str:
            texts = (re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(cell)) for cell in cells)
            return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"

        body = "\n".join(line("td", row) for row in self.rows)
        text = re.sub(r"`(.+?)`", r"<code>\1</code>", html.escape(self.note))
        note = f"<p>{text}</p>" if self.note else ""
        return f"<h2>{html.escape(self.title)}</h2>\n<table>\n{line('th', self.columns)}\n{body}\n</table>\n{note}"


def all_tables(study: Study) -> list[Table]:
    """Every table; one without rows has nothing to say."""
    return [accuracy(study), figures(study), costs(study), headline(study), tuning(study), missing(study)]


def accuracy(study: Study) -> Table:
    """The paper's Tables 1 and 2: a row a method, a column a scenario, the paper's figure beside ours."""
    methods, scenarios = registry.ordered(study.methods), study.scenarios
    best = [max(map(_mean, study.in_scenario(s)), default=0.0) for s in scenarios]
    with_paper = False

    def cell(i: int, method: str) -> str:
        nonlocal with_paper
        outcome = study.at(scenarios[i], method)
        if outcome is None:
            return "–"
        if not outcome.runs:
            return f"– ({_short(outcome)})"
        text = words.percent(_accuracy(outcome))
        if _mean(outcome) == best[i]:
            text = f"**{text}**"
        if outcome.missing:
            text += f" ({len(outcome.runs)} of {len(outcome.runs) + len(outcome.missing)} seeds)"
        printed = paper.accuracy(next(iter(outcome.runs.values())).experiment)
        with_paper = with_paper or printed is not None
        return text + (f" [{printed}]" if printed else "")

    labels = [words.keys(s) for s in scenarios]
    if len(scenarios) > _WIDE:
        columns = ["scenario", *map(registry.title, methods)]
        rows = [[labels[i], *(cell(i, m) for m in methods)] for i in range(len(scenarios))]
    else:
        columns = ["method", *labels]
        rows = [[registry.title(m), *(cell(i, m) for i in range(len(scenarios)))] for m in methods]
    note = (
        "Mean test accuracy of all clients in percent, at the round of the best validation accuracy; "
        "mean ± half-width of the 95 % t-interval over seeds; bold: the highest of a scenario."
    )
    if with_paper:
        note += ' In brackets: the paper\'s figure, "-" where it reports failure to converge.'
    return Table("accuracy", "Accuracy", columns, rows, note)


def figures(study: Study) -> Table:
    """All three accuracy figures, and each method against Standalone."""
    others = any(run.result["accuracy"]["other"] for o in study.outcomes for run in o.runs.values())
    columns = ["scenario", "method", "seeds", "at best validation", "final", "max test", "worst client", "std of clients"]
    columns += ["− Standalone, points", "clients better than Standalone", *(["other predictors"] if others else [])]
    rows = []
    for o in _in_order(study):
        alone = study.at(o.scenario, "standalone")
        difference = measures.paired(o.runs, alone.runs) if alone and o.method != "standalone" else None
        wins = measures.win_rate(o.runs, alone.runs) if alone and o.method != "standalone" else None
        row = [words.keys(o.scenario), registry.title(o.method), str(len(o.runs)), words.percent(_accuracy(o))]
        row += [words.percent(_figure(o, name)) for name in ("final", "max_test")]
        row += [f"{100 * statistics.fmean(r.result['accuracy'][name] for r in o.runs.values()):.2f}" for name in ("worst", "std")]
        row += [words.percent(difference, sign=True), "–" if wins is None else f"{100 * wins:.0f} %"]
        names = dict.fromkeys(name for run in o.runs.values() for name in run.result["accuracy"]["other"])
        other = [f"{n} {100 * statistics.fmean(r.result['accuracy']['other'][n] for r in o.runs.values()):.2f}" for n in names]
        rows.append(row + ([", ".join(other) or "–"] if others else []))
    note = (
        "Percent. `max test` chooses the round by test accuracy, as papers of this family do, and is never a headline. "
        "Worst client, spread and comparison by client are of the final models; a tie is half a win; differences are paired by seed."
    )
    return Table("figures", "All accuracy figures", columns, rows, note)


def costs(study: Study) -> Table:
    """Communication and computation to the target accuracy, in both conventions, and of the whole run."""
    columns = ["scenario", "method", "target", "seeds there", "rounds", "parameters, full", "bytes, full", "FLOP, full"]
    columns += ["parameters, paper", "FLOP, paper", "whole run: parameters up", "down", "FLOP", "seconds"]
    rows = []
    for o in _in_order(study):
        found = [c for run in o.runs.values() if (c := measures.cost(run))]

        def of(name: str, found: list[measures.Cost] = found) -> str:
            return words.count(statistics.fmean(getattr(c, name) for c in found)) if found else "–"

        def whole(get: Callable[[Result], float], o: Outcome = o) -> str:
            return words.count(statistics.fmean(get(run.result) for run in o.runs.values()))

        run = next(iter(o.runs.values()))
        target = f"{100 * to_target(run.experiment, run.rounds)['accuracy']:g} %"
        row = [words.keys(o.scenario), registry.title(o.method), target, f"{len(found)} of {len(o.runs)}"]
        row += [of(name) if found else "not reached" for name in ("rounds",)]
        row += [of(name) for name in ("parameters", "bytes", "flops", "paper_parameters", "paper_flops")]
        row += [whole(lambda r: r["communication"]["parameters_up"]), whole(lambda r: r["communication"]["parameters_down"])]
        row += [whole(lambda r: r["flops"]), whole(lambda r: r["seconds"]["total"])]
        rows.append(row)
    note = (
        "Until the mean test accuracy first reaches the target, the mean over the seeds that reach it. "
        "`full`: up and down, all sampled clients, and all operations that they executed; "
        "`paper`: rounds × one client's upload, and rounds × 2·MAC of one image through one client's model."
    )
    return Table("costs", "Communication and computation to the target accuracy", columns, rows, note)


def headline(study: Study) -> Table:
    """The paper's three headline claims beside ours; no rows where there is no pFedLoRA to claim anything for."""
    columns = ["scenario", "best baseline", "pFedLoRA above it, points", "FedProto ÷ pFedLoRA: FLOP, full", "FLOP, paper"]
    columns += ["parameters, full", "parameters, paper"]
    rows = []
    for scenario in study.scenarios:
        ours = study.at(scenario, "pfedlora")
        if ours is None or not ours.runs:
            continue
        best = max((o for o in study.in_scenario(scenario) if o.method in paper.BASELINES), key=_mean, default=None)
        above = words.percent(measures.paired(ours.runs, best.runs), sign=True) if best else "–"
        proto = study.at(scenario, "fedproto")
        ratios = measures.ratios(proto.runs, ours.runs) if proto else None
        why = "FedProto not run" if not proto or not proto.runs else "target not reached by both"
        values = [ratios.flops, ratios.paper_flops, ratios.parameters, ratios.paper_parameters] if ratios else []
        cells = ["–" if math.isnan(value) else f"{value:.2f}" for value in values] or [f"– ({why})"] * 4
        rows.append([words.keys(scenario), registry.title(best.method) if best else "–", above, *cells])
    if rows:
        rows.append(
            ["**the paper, at most**", "", f"**{paper.GAIN:+.2f}**", "", f"**{paper.COMPUTATION}**", "", f"**{paper.COMMUNICATION}**"]
        )
    note = (
        "The baselines are the paper's six. The ratios count until both reach the target accuracy. "
        "The paper does not say how it counts: `paper` is the convention recovered from the figures of its family."
    )
    return Table("headline", "The paper's headline claims", columns, rows, note)


def tuning(study: Study) -> Table:
    """Which values were chosen for the tuned keys, and among which."""
    rows = []
    for o in study.outcomes:
        for tried in o.tried:
            mark = "**chosen**" if o.tuned == tried.tuned else ""
            result = (
                f"{100 * tried.validation:.2f}" if tried.validation is not None else f"– ({tried.missing.reason})" if tried.missing else "–"
            )
            rows.append([words.keys(o.scenario), registry.title(o.method), words.keys(tried.tuned), result, mark])
    columns = ["scenario", "method", "candidate", "validation accuracy", ""]
    return Table("tuning", "Tuned keys", columns, rows, "Chosen by the validation accuracy of the first seed, never by test accuracy.")


def missing(study: Study) -> Table:
    """The runs that are not there, and why."""
    rows = []
    for o in study.outcomes:
        for reason in dict.fromkeys(o.missing.values()):
            seeds = ", ".join(str(seed) for seed, why in o.missing.items() if why == reason)
            rows.append([words.keys(o.scenario), registry.title(o.method), seeds, reason])
    return Table("missing", "Missing runs", ["scenario", "method", "seeds", "why"], rows)


def runs_csv(study: Study) -> str:
    """One line a run, the numbers unrounded: for a reader's own statistics."""
    keys = list(dict.fromkeys(k for s in study.scenarios for k in s))
    tuned = list(dict.fromkeys(k for o in study.outcomes for k in (o.tuned or {})))
    names = ["at_best_validation", "final", "max_test", "worst", "std"]
    totals = ["parameters_up", "parameters_down", "flops", "seconds", "partition"]
    lines: list[list[object]] = [[*keys, "method", *tuned, "seed", *names, *totals]]
    for o in study.outcomes:
        for seed, run in o.runs.items():
            r = run.result
            own = [o.scenario.get(k, "") for k in keys], [(o.tuned or {}).get(k, "") for k in tuned]
            sent = [r["communication"]["parameters_up"], r["communication"]["parameters_down"], r["flops"], r["seconds"]["total"]]
            lines.append([*own[0], o.method, *own[1], seed, *(dict(r["accuracy"])[n] for n in names), *sent, r["partition"]])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def _in_order(study: Study) -> list[Outcome]:
    rank = registry.ordered(study.methods)
    return [o for scenario in study.scenarios for o in sorted(study.in_scenario(scenario), key=lambda o: rank.index(o.method))]


def _mean(outcome: Outcome) -> float:
    return statistics.fmean(run.accuracy for run in outcome.runs.values())


def _accuracy(outcome: Outcome) -> measures.Estimate | None:
    return measures.estimate([run.accuracy for run in outcome.runs.values()])


def _figure(outcome: Outcome, name: Literal["final", "max_test"]) -> measures.Estimate | None:
    return measures.estimate([run.result["accuracy"][name] for run in outcome.runs.values()])


def _short(outcome: Outcome) -> str:
    """Why an outcome has no run, in a word or two."""
    return next(iter(outcome.missing.values()), "not run").partition(":")[0]


def settings(study: Study) -> Keys:
    """The keys on which all runs agree and that are not at their defaults."""
    changed = [run.experiment.changed() for o in study.outcomes for run in o.runs.values()]
    common = changed[0].items() if changed else ()
    return {k: v for k, v in common if k not in ("method", "seed") and all(c.get(k) == v for c in changed)}
