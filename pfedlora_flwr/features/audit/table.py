"""The table of what uploads reveal, from runs audited by `pfedlora audit`."""

from __future__ import annotations

from collections.abc import Sequence

from pfedlora_flwr.features.audit.rules import FILE
from pfedlora_flwr.report import measures, words
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.measures import figure
from pfedlora_flwr.report.table import Table
from pfedlora_flwr.runs.audits import Audit, read_audit

_COLUMNS = {
    "classes, upload: AUC": "classes/upload/auc",
    "TPR at 1 % FPR": "classes/upload/tpr_at_1pct",
    "classes, sum: AUC": "classes/sum/auc",
    "samples: AUC": "membership/auc",
    "samples: TPR at 1 % FPR": "membership/tpr_at_1pct",
    "samples, own encoder: AUC": "membership/bound/auc",
}


def audits(study: Study) -> Table:
    """A row a method in each scenario that has an audited run."""
    rows = []
    for o in study.in_order():
        read = (read_audit(run.directory.path / FILE) for run in o.runs.values())
        found = [audit for audit in read if audit]
        if not found:
            continue
        by = " and ".join(
            dict.fromkeys(
                "uploads" if audit["source"] == "uploads" else "the last sum" for audit in found
            )
        )
        rows.append(
            {**words.names(o), "seeds": str(len(found)), "audited by": by}
            | {n: _cell(found, p) for n, p in _COLUMNS.items()}
        )
    note = (
        "What the server can tell of single clients: `classes`, which classes a client holds, from"
        " its upload and from the sum of all uploads; `samples`, which samples it trained on (of"
        " runs without uploads from the sum). AUC 0.5 tells nothing, 1 tells all; of several"
        " attacks the one with the largest AUC, which favours the attacker. `own encoder`: with"
        " what never leaves the client; none where it is frozen, and so known to the server. Mean"
        f" over seeds with its 95 % t-interval; below {measures.FEWEST} seeds each seed's, one with"
        " its interval over clients, if there are five or more and it is no sum's. With fewer than"
        " 100 negatives `TPR at 1 % FPR` is at no false positive. – : nothing that is sent can be"
        " attacked so."
    )
    return Table("audit", "What uploads reveal", rows, note)


def _cell(found: Sequence[Audit], place: str) -> str:
    values = [figure(audit, place) for audit in found]
    known = measures.estimate([value for value in values if value is not None])
    if known is None:
        return "–"
    if len(found) == 1 and place.endswith("/auc"):
        low, high = (figure(found[0], place.replace("/auc", f"/{end}")) for end in ("low", "high"))
        return f"{known.mean:.3f}" + ("" if low is None else f" ({low:.2f} – {high:.2f})")
    shown = ", ".join(
        f"{value:.3f}" for value in (known.values if known.half is None else [known.mean])
    )
    return shown + (f" ± {known.half:.3f}" if known.half is not None else "")
