"""The losses as their formulas are written, in NumPy, a sample and a class at a time: what the
methods' tests compare with."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[np.float64]


def array(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy().astype(np.float64)


def softmax(logits: Array) -> Array:
    """[C] → probabilities [C]."""
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def cross_entropy(logits: Array, labels: list[int]) -> float:
    """Mean of −log p_y; logits [B, C]."""
    return float(
        np.mean([-math.log(softmax(row)[y]) for row, y in zip(logits, labels, strict=True)])
    )


def soft_cross_entropy(target: Array, logits: Array) -> float:
    """−Σ_c softmax(target)_c · log softmax(logits)_c of one sample."""
    return float(-(softmax(target) * np.log(softmax(logits))).sum())


def kl(peer: Array, learner: Array) -> float:
    """KL(peer ‖ learner) = Σ_c p_c log(p_c / q_c), mean over the samples of logits [B, C]."""
    pairs = [(softmax(p), softmax(q)) for p, q in zip(peer, learner, strict=True)]
    return float(np.mean([(p * np.log(p / q)).sum() for p, q in pairs]))


def class_means(values: Array, labels: list[int]) -> dict[int, Array]:
    """The mean row of each class."""
    return {
        y: np.mean([v for v, label in zip(values, labels, strict=True) if label == y], axis=0)
        for y in sorted(set(labels))
    }
