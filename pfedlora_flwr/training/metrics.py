"""The scores of a classifier on one part of a client's samples: a function each, and their names.
tests/training/test_metrics.py holds them equal to scikit-learn's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfedlora_flwr.training.loop import Samples, infer

_BINS = 15
"""Of confidence, as in Guo et al., "On Calibration of Modern Neural Networks" (2017)."""
VALIDATION = "validation_"
"""How the name of a score on the validation part begins, in a line."""


@dataclass(frozen=True)
class Predictions:
    """What a model says of samples. logits: [n, classes]; labels: int64 [n]."""

    logits: Tensor
    labels: Tensor

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """[n, classes]."""
        return self.logits.cpu().double().softmax(1).numpy()

    @cached_property
    def right(self) -> Tensor:
        """Which samples get the highest output for their own class, bool [n]."""
        return self.logits.argmax(1).to(self.labels.device) == self.labels

    @cached_property
    def confusion(self) -> NDArray[np.int64]:
        """[classes, classes]: at [t, p] the samples of class t that were taken for class p."""
        classes = self.logits.shape[1]
        pairs = self.labels.cpu() * classes + self.logits.argmax(1).cpu()
        return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes).numpy()

    @property
    def usable(self) -> bool:
        """Whether there are samples, and all outputs are numbers."""
        return bool(len(self.labels)) and bool(np.isfinite(self.probabilities).all())

    def against_rest(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Of each class that some samples have and others have not, the probabilities that its
        samples and the others get for it, ascending."""
        labels = self.labels.cpu().numpy()
        for c in np.unique(labels) if self.usable and len(np.unique(labels)) > 1 else ():
            given, own = self.probabilities[:, c], labels == c
            yield np.sort(given[own]), np.sort(given[~own])


def predictions(predict: Callable[[Tensor], Tensor], samples: Samples, classes: int) -> Predictions:
    """What `predict`, which gives logits, says of the samples."""
    logits = infer(predict, samples) if len(samples) else torch.zeros(0, classes)
    return Predictions(logits, samples.labels)


def accuracy(p: Predictions) -> float:
    """The share of right ones; 0 without samples, as the next two."""
    return int(p.confusion.trace()) / max(1, len(p.labels))


def balanced_accuracy(p: Predictions) -> float:
    """The mean recall of the classes that have a true sample."""
    true = p.confusion.sum(1)
    there = true > 0
    return float((p.confusion.diagonal()[there] / true[there]).mean()) if there.any() else 0.0


def macro_f1(p: Predictions) -> float:
    """The mean F1, 2TP / (2TP + FP + FN), of the same classes: a sample that is taken for another
    class is missing from its own alone."""
    true, taken = p.confusion.sum(1), p.confusion.sum(0)
    there = true > 0
    found = 2 * p.confusion.diagonal()[there] / (true + taken)[there]
    return float(found.mean()) if there.any() else 0.0


def auroc(p: Predictions) -> float | None:
    """The mean, over the classes there, of the area under the ROC curve of one against the rest;
    None where all samples are of one class, as for the next one."""
    found = [
        (np.searchsorted(rest, own, "left") + np.searchsorted(rest, own, "right")).mean()
        / (2 * len(rest))
        for own, rest in p.against_rest()
    ]
    return float(np.mean(found)) if found else None


def average_precision(p: Predictions) -> float | None:
    """The mean, over the classes there, of the average precision of one against the rest."""
    found = []
    for own, rest in p.against_rest():
        above = len(own) - np.searchsorted(own, own, "left")
        others = len(rest) - np.searchsorted(rest, own, "left")
        found.append((above / (above + others)).mean())
    return float(np.mean(found)) if found else None


def log_loss(p: Predictions) -> float | None:
    """−log of the true class's probability, in nats, the mean; None without samples."""
    if not p.usable:
        return None
    given = p.probabilities[np.arange(len(p.labels)), p.labels.cpu().numpy()]
    least = np.finfo(np.float64).eps
    return float(-np.log(given.clip(least, 1 - least)).mean())


def ece(p: Predictions) -> float | None:
    """The expected calibration error: |share of right ones − mean confidence| in bins of the
    confidence, weighted by their samples."""
    if not p.usable:
        return None
    sure = p.probabilities.max(1)
    bins = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    return float(np.abs(np.bincount(bins, p.right.cpu().numpy() - sure)).sum() / len(sure))


def sensitivity(p: Predictions, of: int) -> float | None:
    """The recall of one class; None where it has no true sample."""
    true = int(p.confusion[of].sum()) if of < len(p.confusion) else 0
    return int(p.confusion[of, of]) / true if true else None


SCORES: dict[str, Callable[[Predictions], float | None]] = {
    score.__name__: score
    for score in (accuracy, balanced_accuracy, macro_f1, auroc, average_precision, log_loss, ece)
}
"""By the name in a line. `sensitivity@CLASS` is one more for each class."""
TITLES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro-F1",
    "auroc": "AUROC",
    "average_precision": "average precision",
    "log_loss": "log-loss",
    "ece": "ECE",
}
"""The same in words."""
BESIDE_ACCURACY = tuple(name for name in SCORES if name != "accuracy")
OF_DECISIONS = ("balanced_accuracy", "macro_f1")
"""Those beside accuracy that the predicted classes alone make: they are always there."""
_BY_CLASS = (*OF_DECISIONS, "auroc", "average_precision")
SENSITIVITY = "sensitivity@"
MAY_DECIDE = (*(name.replace("_", "-") for name in SCORES), SENSITIVITY)
"""What the key `verdict.score` allows."""
SMALLER_IS_BETTER = frozenset({"log_loss", "ece"})


def measured(name: str, p: Predictions, classes: Sequence[str] = ()) -> float | None:
    """A score by its name in a line; None where it is not defined. classes: their names."""
    if name.startswith(SENSITIVITY):
        of = name.removeprefix(SENSITIVITY)
        return sensitivity(p, classes.index(of)) if of in classes else None
    return SCORES[name](p)


def place(score: str) -> str:
    """A value of the key `verdict.score` as the name in a line."""
    return score if score.startswith(SENSITIVITY) else score.replace("-", "_")


def is_score(name: Any) -> bool:
    """Whether a line's field is a score of an evaluation beside its accuracies."""
    name = str(name).removeprefix(VALIDATION)
    return name in BESIDE_ACCURACY or name.startswith(SENSITIVITY)


def is_by_class(name: str) -> bool:
    """Whether a score weighs each class alike, so that it moves by 1/(classes · n_c)."""
    name = name.removeprefix(VALIDATION)
    return name.startswith(SENSITIVITY) or name in _BY_CLASS


def worth(score: str, value: float | None) -> float:
    """The value so that more is better; −inf for None. score: of the key `verdict.score`."""
    if value is None:
        return -np.inf
    return -value if place(score) in SMALLER_IS_BETTER else value
