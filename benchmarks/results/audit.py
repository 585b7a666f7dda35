"""What uploads reveal, on CIFAR-10: runs.csv, of audited comparisons by conf/quick/audit*.yaml.

python -m benchmarks.results.audit FOLDER..."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.results.page import (
    RESULTS,
    Page,
    Row,
    by_seed,
    completed,
    difference,
    merged,
)
from pfedlora_flwr.methods import registry
from pfedlora_flwr.report import style
from pfedlora_flwr.report.measures import figure
from pfedlora_flwr.runs.audits import read_audit

OF = ("setting", "local-epochs", "partition.kind", "secagg.enabled")
KEYS = (*OF, "method", "seed")
OF_UPLOADS = {
    "bias": "classes/attacks/bias/auc",
    "row norm": "classes/attacks/row norm/auc",
}
"""Without kept uploads these attacks are the sum's, and runs.csv has none."""
FIGURES = {
    "classes": "classes/upload/auc",
    **OF_UPLOADS,
    "sum": "classes/sum/auc",
    "samples": "membership/auc",
    "samples, own encoder": "membership/bound/auc",
    "samples, rate": "membership/tpr_at_1pct",
    **{f"row norm, round {n}": f"classes/rounds/{n}/row norm" for n in range(1, 5)},
}
"""By its name in runs.csv a figure's place in `audit.json`."""
COLUMNS = (*KEYS, *FIGURES, "accuracy")
PLAIN = "heterogeneous", "1", "pathological", "False"
SECURE = "heterogeneous", "1", "pathological", "True"
CASES: dict[tuple[str, ...], str] = {
    PLAIN: "",
    SECURE: "secure: only the sum is visible",
    ("homogeneous", "1", "pathological", "False"): "homogeneous",
    ("heterogeneous", "10", "pathological", "False"): "ten epochs per visit",
    ("heterogeneous", "1", "dirichlet", "False"): "Dirichlet 0.3",
}
"""By the values of OF what the page says after the method's name."""


SHOWN = (
    *("FedAvg, homogeneous", "pFedLoRA", "pFedLoRA, secure: only the sum is visible"),
    *("FML, ten epochs per visit", "pFedLoRA, ten epochs per visit", "pFedLoRA, Dirichlet 0.3"),
)


def make(page: Page) -> None:
    rows = page.rows("runs.csv")
    lines = []
    for case, words in CASES.items():
        for method in registry.ordered({row["method"] for row in _of(rows, case)}):
            here = _of(rows, case, method)
            cells = [_cell(here, name) for name in ("classes", "sum", "samples")]
            name = registry.title(method) + (f", {words}" if words else "")
            lines.append([name, *cells, _cell(here, "samples, own encoder")])
    header = (
        *("method", "classes, from uploads", "classes, from the sum"),
        *("samples, from what is sent", "samples, with the client's own encoder"),
    )
    page.whole("told", header, lines)
    page.table("shown", header, (line for line in lines if line[0] in SHOWN))
    page.picture("audit.png", lambda folder: draw(rows, folder))
    for row in rows:
        page.says(*(float(row[name]) for name in FIGURES if row[name]))
        page.says(100 * float(row["samples, rate"]))
        page.says(100 * float(row["accuracy"]))
    secure, plain = (by_seed(_of(rows, of, "pfedlora"), "accuracy") for of in (SECURE, PLAIN))
    page.says(difference(secure, plain))


def draw(rows: Sequence[Row], folder: Path) -> Path:
    """AUC of the attacks on pFedLoRA's and FML's uploads, by case, with the range of the seeds."""
    cases = [case for case in CASES if case != SECURE]
    names = [CASES[case] or "two classes, one epoch" for case in cases]
    with style.drawing(1, 2, (7.2, 2.2), sharey="row") as (figure, axes):
        kinds = {"classes": "Which classes?", "samples": "Which samples?"}
        for axis, (kind, title) in zip(axes[0], kinds.items(), strict=True):
            for shift, method in enumerate(("pfedlora", "fml")):
                colour = style.OKABE_ITO[(0, 6)[shift]]
                for place, case in enumerate(reversed(cases)):
                    values = [float(row[kind]) for row in _of(rows, case, method) if row[kind]]
                    if values:
                        at = [place + 0.15 - 0.3 * shift] * len(values)
                        label = registry.title(method) if place == len(cases) - 1 else None
                        axis.plot(values, at, "o", color=colour, label=label)
            axis.axvline(0.5, color="#808080", linewidth=0.8)
            axis.set_title(title)
            axis.set_xlabel("AUC: 0.5 reveals nothing, 1 everything")
            axis.set_xlim(0.45, 1.03)
        axes[0][1].legend(frameon=False)
        axes[0][0].set_yticks(range(len(cases)), list(reversed(names)))
        figure.savefig(folder / "audit.png")
    return folder / "audit.png"


def _of(rows: Iterable[Row], case: Sequence[str], method: str | None = None) -> list[Row]:
    return [
        row
        for row in rows
        if tuple(row[key] for key in OF) == case and method in (None, row["method"])
    ]


def _cell(rows: list[Row], name: str) -> str:
    """The mean AUC over the seeds, with the range if they differ; – where nothing was attacked."""
    values = [float(row[name]) for row in rows if row[name]]
    if not values:
        return "–"
    mean, low, high = (f"{of(values):.3f}" for of in (statistics.fmean, min, max))
    return mean if low == high else f"{mean} [{low}, {high}]"


def _audited(folder: Path) -> list[list[object]]:
    """A row for each completed run of a comparison that was audited."""
    found = list[list[object]]()
    for run, result in completed(folder):
        if audit := read_audit(run.path / "audit.json"):
            keys = run.experiment().flat()
            values = {name: figure(audit, place) for name, place in FIGURES.items()}
            if audit["source"] == "sum":
                values |= dict.fromkeys(OF_UPLOADS)
            told = ("" if value is None else value for value in values.values())
            found.append([*(keys[key] for key in KEYS), *told, result["accuracy"]["final"]])
    return found


if __name__ == "__main__":
    merged(
        RESULTS / "audit" / "runs.csv",
        COLUMNS,
        KEYS,
        [row for name in sys.argv[1:] for row in _audited(Path(name))],
    )
