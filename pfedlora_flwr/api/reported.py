"""What a report says of runs on disk, for Python: the verdict, figures, and what a notebook
shows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from pfedlora_flwr.api.objects import Given
from pfedlora_flwr.api.process import as_it_was
from pfedlora_flwr.api.running import keys_of, named
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.models.given import available
from pfedlora_flwr.ops import report as reporting
from pfedlora_flwr.report import opening, shown
from pfedlora_flwr.report.load import Study
from pfedlora_flwr.report.load import load as load_study

if TYPE_CHECKING:
    from pfedlora_flwr.api.typed_keys import RunKeys


class Reported:
    """A run or a comparison on disk. What it reads is read when it is asked for."""

    def __init__(self, path: Path, given: Given | None = None) -> None:
        self.path = path
        """Its directory; docs/output.md describes the files."""
        self._given = given or Given()

    @property
    def verdict(self) -> str:
        """What the numbers say: the first lines of the report.

        Raises:
            UserError: No run is completed.
        """
        with self._study() as study:
            return opening.conclusion(study)

    def plot(self, kind: str = "curves", **keys: Unpack[RunKeys]) -> Any:
        """A figure of the report.

        Args:
            kind: `curves` (accuracy against rounds, bytes and operations), `clients` (a box a
                method), `partition` (classes by client), `inputs` or `t-sne` of one scenario;
                `gain` (each method beside Standalone) or `sites` (who gains) of a comparison.
            keys: Those of the scenario, where the comparison has several: `clients=50`.

        Returns:
            A `matplotlib.figure.Figure`. A notebook shows it; `savefig` writes it.

        Raises:
            UserError: No run is completed, or it cannot be drawn of these runs.
        """
        with self._study() as study:
            return shown.figure(study, kind, keys_of(named(**keys), Given()))

    def report(
        self,
        output: str | PathLike[str] | None = None,
        *,
        target: float | None = None,
        score: str | None = None,
        margin: float | None = None,
        std: bool = False,
        best: bool = False,
        paths: Sequence[str | PathLike[str]] = (),
    ) -> Path:
        """Write tables (Markdown, CSV, LaTeX), figures (PNG, SVG, PDF) and one page, report.html.

        Args:
            output: The folder, otherwise `report` in the run's or the comparison's.
            target: The accuracy in (0, 1] that costs are counted to, in the place of the runs'.
            score: The verdict's, in the place of `verdict.score`.
            margin: The verdict's, in points, in the place of `verdict.margin`.
            std: Whether accuracies are mean ± standard deviation, with the interval beside it.
            best: Whether the best and the second-best accuracy of each column are marked.
            paths: Further runs to report on, such as a run's control: the verdict is on all.

        Returns:
            The folder.

        Raises:
            UserError: No run is completed.
        """
        place = None if output is None else Path(output)
        with available(self._given.objects), as_it_was():
            every = [self.path, *map(Path, paths)]
            found = reporting.report(
                every, place, target=target, score=score, margin=margin, std=std, best=best
            )
        for line in found.warnings:
            warnings.warn(line.removeprefix("warning: "), stacklevel=2)
        return found.written.folder

    def _repr_html_(self) -> str | None:
        """What a notebook shows; None, so that it is the line, where no run is completed."""
        try:
            with self._study() as study:
                return shown.page(study) if study.runs else None
        except UserError:
            return None

    @contextmanager
    def _study(self, *others: Path) -> Iterator[Study]:
        with available(self._given.objects), as_it_was():
            yield load_study([self.path, *others])
