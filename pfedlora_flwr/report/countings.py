"""Two tables of other ways to compute accuracy."""

from __future__ import annotations

from pfedlora_flwr.report import measures, paper, words
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.table import Table
from pfedlora_flwr.training.metrics import BESIDE_ACCURACY, TITLES


def scores(study: Study) -> Table:
    """The scores that give every class of a client the same weight; no rows for
    runs of versions without them."""
    of_result = {TITLES[name]: name for name in BESIDE_ACCURACY}
    rows = []
    for o in (o for o in study.in_order() if measures.over_seeds(o, "macro_f1/final")):
        row = {**words.names(o), "seeds": str(len(o.runs))}
        for when, name in (("at best validation", "at_best_validation"), ("final", "final")):
            row |= {
                f"{title}, {when}": words.percent(measures.over_seeds(o, f"{part}/{name}"))
                for title, part in of_result.items()
                if measures.over_seeds(o, f"{part}/{name}")
            }
        rows.append(row)
    note = (
        "Percent. Balanced accuracy is the mean recall, macro-F1 the mean F1 of the classes in a"
        " client's test part, AUROC and average precision the mean over them of one against the"
        " rest; then the mean over the clients that have one, as for accuracy. Of log-loss (nats,"
        " in hundredths) and of the expected calibration error (ECE) less is better."
    )
    return Table("scores", "Scores", rows, note)


def sampled(study: Study) -> Table:
    """The accuracies as the public code of the paper's family counts them, beside the headline and
    the paper's own."""
    rows = []
    for o in study.in_order():
        row = {
            **words.names(o),
            "seeds": str(len(o.runs)),
            "mean over the sampled clients, last round": words.percent(
                measures.over_seeds(o, "accuracy/sampled_last")
            ),
            "mean over the sampled clients, highest round": words.percent(
                measures.over_seeds(o, "accuracy/sampled_highest")
            ),
        }
        printed = paper.accuracy(o)
        rows.append(row | ({"the paper prints": printed} if printed else {}))
    note = (
        "Percent, by the convention of this family's public code: the clients that a round has"
        " sampled, each right after its own training in that round. The highest"
        " round is a choice by the test data. Neither is ever a headline."
        f"{words.uncounted(study)}"
    )
    return Table("sampled", "Accuracy as this family of papers counts it", rows, note)
