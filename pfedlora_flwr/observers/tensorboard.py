"""Writes TensorBoard's event files from the lines of a run's rounds (`observers=tensorboard`)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from pfedlora_flwr.errors import needed
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.observers.observer import Observer
from pfedlora_flwr.observers.scalars import scalars
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.rows import Result, RoundRow


class TensorBoard(Observer):
    """The files in the run's folder `events`, begun anew at each start: the rounds so far, then
    each as it comes. Raises UserError when TensorBoard is not installed."""

    def __init__(self) -> None:
        library = needed("torch.utils.tensorboard", "observers names tensorboard", "tensorboard")
        self._writer_of = library.SummaryWriter

    def begin(self, keys: Mapping[str, Scalar]) -> None:
        run = RunDirectory(Path(str(keys["output"])))
        shutil.rmtree(run.events, ignore_errors=True)
        self._writer = self._writer_of(str(run.events))
        for row in run.rounds():
            self.round(row)

    def round(self, row: RoundRow) -> None:
        for tag, value in scalars(row).items():
            self._writer.add_scalar(tag, value, row["round"])
        self._writer.flush()

    def end(self, result: Result) -> None:
        self._writer.close()
