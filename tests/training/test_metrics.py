"""The scores of predictions, against pencil and paper and scikit-learn."""

from __future__ import annotations

from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn
from torch import Tensor

from pfedlora_flwr.runs.rows import ScoreFields
from pfedlora_flwr.training.loop import Samples, count_correct
from pfedlora_flwr.training.metrics import (
    BESIDE_ACCURACY,
    OF_DECISIONS,
    SCORES,
    SENSITIVITY,
    TITLES,
    VALIDATION,
    Predictions,
    measured,
    predictions,
    worth,
)


def of_matrix(matrix: list[list[int]]) -> Predictions:
    """Predictions with that confusion matrix."""
    cells = [(t, p) for t, row in enumerate(matrix) for p, n in enumerate(row) for _ in range(n)]
    truth, taken = torch.tensor(cells, dtype=torch.int64).reshape(-1, 2).T
    return Predictions(torch.nn.functional.one_hot(taken, len(matrix)).float(), truth)


def test_a_class_without_a_true_sample_is_in_neither_mean() -> None:
    """Of 8 samples of class 0 six are right, one is taken for 1, one for 2; the 2 of class 1 are
    right; class 2 has none."""
    matrix = [[6, 1, 1], [0, 2, 0], [0, 0, 0]]
    p = of_matrix(matrix)
    assert p.confusion.tolist() == matrix
    found = [SCORES[name](p) for name in ("accuracy", *OF_DECISIONS)]
    assert found == pytest.approx([8 / 10, (6 / 8 + 2 / 2) / 2, (12 / 14 + 4 / 5) / 2])
    recalls = [measured(f"{SENSITIVITY}{name}", p, ["a", "b", "c"]) for name in "abcd"]
    assert recalls == [6 / 8, 1.0, None, None]


@pytest.mark.parametrize(("classes", "there"), [(2, [0, 1]), (7, [1, 2, 3, 4, 5])])
@pytest.mark.parametrize("ties", [False, True])
def test_they_are_scikit_learns(classes: int, there: list[int], ties: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    truth = torch.tensor(there)[torch.randint(len(there), (700,), generator=draw)]
    logits = 2 * torch.randn(700, classes, generator=draw)
    logits = logits.round() if ties else logits
    p = predictions(lambda inputs: inputs, Samples(logits, truth), classes)
    given, taken = logits.double().softmax(1).numpy(), logits.argmax(1)
    found = {name: score(p) for name, score in SCORES.items()}
    means: dict[str, Any] = {"labels": there, "average": "macro"}
    against_rest = np.eye(classes)[truth][:, there], given[:, there]
    sure, right = given.max(1), (taken == truth).numpy()
    bins = [(sure > i / 15) & (sure <= (i + 1) / 15) for i in range(15)]
    assert found == pytest.approx(
        {
            "accuracy": sklearn.accuracy_score(truth, taken),
            "balanced_accuracy": sklearn.recall_score(truth, taken, **means),
            "macro_f1": sklearn.f1_score(truth, taken, **means),
            "auroc": sklearn.roc_auc_score(*against_rest, average="macro"),
            "average_precision": sklearn.average_precision_score(*against_rest, average="macro"),
            "log_loss": sklearn.log_loss(truth, given, labels=range(classes)),
            "ece": sum(abs(right[b].mean() - sure[b].mean()) * b.mean() for b in bins if b.any()),
        },
        abs=1e-12,
    )
    assert found["accuracy"] == count_correct(lambda inputs: inputs, Samples(logits, truth)) / 700
    if classes == 2 and not ties:
        assert found["auroc"] == pytest.approx(sklearn.roc_auc_score(truth, given[:, 1]))


@pytest.mark.parametrize(
    ("logits", "labels", "missing"),
    [
        (torch.zeros(0, 3), [], {"auroc", "average_precision", "log_loss", "ece"}),
        (torch.eye(3), [1, 1, 1], {"auroc", "average_precision"}),
        (
            torch.full((2, 3), torch.nan),
            [0, 1],
            {"auroc", "average_precision", "log_loss", "ece"},
        ),
    ],
    ids=["no sample", "one class", "no numbers"],
)
def test_a_score_that_is_not_defined_is_none(
    logits: Tensor, labels: list[int], missing: set[str]
) -> None:
    p = Predictions(logits, torch.tensor(labels, dtype=torch.int64))
    assert {name for name, score in SCORES.items() if score(p) is None} == missing


def test_the_key_the_lines_and_the_tables_have_them_all() -> None:
    """Red where a score is added in `SCORES` alone."""
    assert {*TITLES} == {*SCORES}
    fields = {name for part in ("", VALIDATION) for name in map(part.__add__, BESIDE_ACCURACY)}
    assert get_type_hints(ScoreFields).keys() == fields


def test_of_a_loss_less_is_worth_more_and_nothing_is_worth_least() -> None:
    assert worth("log-loss", 0.1) > worth("log-loss", 0.2) > worth("log-loss", None)
    assert worth("auroc", 0.2) > worth("auroc", 0.1)
