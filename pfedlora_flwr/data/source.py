"""The contract of a dataset: what its entry in the registry tells, what its reader returns, and its images' size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SIZE = 32
"""Height and width of every image; stored are [height, width, channels]."""
Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]
"""Images [n, 32, 32, 3], labels [n] that count from 0, and the classes' names."""


@dataclass(frozen=True)
class Source:
    """One dataset, or a kind of them.

    name: in the configuration; one that ends in ":" takes a text after it.
    read: the arrays, from the text after the name and from `data-path`. Raises UserError where files are missing or broken.
    title: for people; empty: the name in the configuration.
    classes: their number, where the name tells it.
    samples: their number, where the name tells it, or what finds it in the text after the name.
    target: the accuracy that `to_target` counts up to, unless the Experiment says another.
    path: whether the text after the name is a path.
    files: what lies in `data-path` or, without one, is downloaded; any of these will do. Empty: it takes no `data-path`.
    """

    name: str
    read: Callable[[str, str], Arrays]
    title: str = ""
    classes: int | None = None
    samples: int | Callable[[str], int] | None = None
    target: float = 0.9
    path: bool = False
    files: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """What stands after this source's own name in a dataset's full name."""
        return name.removeprefix(self.name)
