"""Scores of a classifier's test part: accuracy, and two means over classes that do not hide a rare
one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pfedlora_flwr.training.loop import Samples, infer


class Scores(NamedTuple):
    """Shares in [0, 1]. The means are over the classes that have a true sample; all are 0 where
    there is no sample."""

    accuracy: float
    balanced_accuracy: float  # the mean of the classes' recalls
    macro_f1: float  # the mean of the classes' F1, 2TP / (2TP + FP + FN)


def confusion(predict: Callable[[Tensor], Tensor], samples: Samples, classes: int) -> Tensor:
    """int64 [classes, classes], on the CPU: at [t, p] the samples of class t that `predict` gives
    its highest score to class p."""
    if not len(samples):
        return torch.zeros(classes, classes, dtype=torch.int64)
    scored = infer(predict, samples)
    return confusion_of(scored.argmax(1), samples.labels, max(classes, scored.shape[1]))


def confusion_of(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The same of predictions that were made, int64 [n]."""
    counts = torch.bincount(labels * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes).cpu()


def scores(confusion: Tensor) -> Scores:
    """The scores of a confusion matrix: int64 [classes, classes], at [t, p] the samples of class t
    that were taken for class p.

    A class without a true sample is left out of both means; a sample that is taken for it is
    missing from its own class."""
    matrix = confusion.cpu()
    right, true, taken = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    accuracy = int(right.sum()) / max(1, int(matrix.sum()))
    there = true > 0
    if not bool(there.any()):
        return Scores(accuracy, 0.0, 0.0)
    recall = right[there].double() / true[there]
    f1 = 2 * right[there].double() / (true + taken)[there]
    return Scores(accuracy, float(recall.mean()), float(f1.mean()))
