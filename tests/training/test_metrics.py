"""The scores of a confusion matrix, against pencil and paper and scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, recall_score

from pfedlora_flwr.training.loop import Samples, count_correct
from pfedlora_flwr.training.metrics import Scores, confusion, scores


def test_a_class_without_a_true_sample_is_in_neither_mean() -> None:
    """Of 8 samples of class 0 six are right, one is taken for 1, one for 2; the 2 of class 1 are
    right; class 2 has none."""
    matrix = torch.tensor([[6, 1, 1], [0, 2, 0], [0, 0, 0]])
    assert scores(matrix) == pytest.approx(
        Scores(8 / 10, (6 / 8 + 2 / 2) / 2, (12 / 14 + 4 / 5) / 2)
    )
    assert scores(torch.zeros(3, 3, dtype=torch.int64)) == Scores(0.0, 0.0, 0.0)


def test_they_are_scikit_learns_and_the_accuracy_is_the_count_of_right_ones() -> None:
    draw = torch.Generator().manual_seed(0)
    truth, logits = torch.randint(1, 6, (700,), generator=draw), torch.randn(700, 7, generator=draw)
    data = Samples(logits, truth)
    matrix = confusion(lambda inputs: inputs, data, 7)
    assert matrix.sum(1).tolist() == torch.bincount(truth, minlength=7).tolist()
    of_those_there = {"labels": [1, 2, 3, 4, 5], "average": "macro"}
    found, taken = scores(matrix), logits.argmax(1)
    assert (
        found.accuracy
        == accuracy_score(truth, taken)
        == count_correct(lambda inputs: inputs, data) / 700
    )
    assert found.balanced_accuracy == pytest.approx(
        recall_score(truth, taken, **of_those_there), abs=1e-12
    )
    assert found.macro_f1 == pytest.approx(f1_score(truth, taken, **of_those_there), abs=1e-12)


def test_no_sample_gives_an_empty_matrix() -> None:
    empty = Samples(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    assert confusion(lambda inputs: inputs, empty, 3).tolist() == [[0, 0, 0]] * 3
