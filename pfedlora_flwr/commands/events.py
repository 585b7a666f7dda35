"""`pfedlora run --tensorboard`: a run's event files, written from the lines of `rounds.jsonl` while they come."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedlora_flwr.keys import UserError
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.rows import RoundRow

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_SCALARS = {
    "accuracy/test": "accuracy",
    "accuracy/validation": "validation_accuracy",
    "loss/training": "loss",
    "communication/parameters_up": "parameters_up",
    "communication/parameters_down": "parameters_down",
    "communication/bytes_up": "bytes_up",
    "communication/bytes_down": "bytes_down",
    "computation/flops": "flops",
    "seconds/round": "seconds",
}


class EventFiles:
    """Writes each round once. The folder is emptied at the first one: a resumed run's earlier rounds are written again."""

    def __init__(self, writer: type[SummaryWriter], folder: Path) -> None:
        self._open = writer
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._last = -1

    def write(self, rounds: Sequence[RoundRow]) -> None:
        """Writes the rounds that are new."""
        if self._writer is None and rounds:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._writer = self._open(str(self._folder))
        for row in rounds:
            if row["round"] <= self._last:
                continue
            assert self._writer is not None
            values: Mapping[str, Any] = row
            for tag, name in _SCALARS.items():
                if values[name] is not None:
                    self._writer.add_scalar(tag, values[name], row["round"])
            for name, value in row["other_accuracies"].items():
                self._writer.add_scalar(f"accuracy/{name}", value, row["round"])
            self._last = row["round"]
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def event_files(run: Path) -> EventFiles:
    """Event files in the folder `events` of a run's directory. Raises UserError when TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard needs TensorBoard, which is not installed: pip install tensorboard") from None
    return EventFiles(SummaryWriter, RunDirectory(run).events)
