"""TensorBoard's event files of a run, from the lines of its rounds (the key `tensorboard`)."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.runs.rows import RoundRow

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_SCALARS = {
    "accuracy/test": "accuracy",
    "accuracy/validation": "validation_accuracy",
    "scores/balanced_accuracy": "balanced_accuracy",
    "scores/macro_f1": "macro_f1",
    "loss/training": "loss",
    "communication/parameters_up": "parameters_up",
    "communication/parameters_down": "parameters_down",
    "communication/bytes_up": "bytes_up",
    "communication/bytes_down": "bytes_down",
    "computation/flops": "flops",
    "seconds/round": "seconds",
}


class EventFiles:
    """The files in a folder, begun anew: the rounds so far, then each as it comes. Raises UserError when TensorBoard is not installed."""

    def __init__(self, folder: Path, rounds: Iterable[RoundRow]) -> None:
        writer = summary_writer()
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = writer(str(folder))
        for row in rounds:
            self.write(row)

    def write(self, row: RoundRow) -> None:
        """Adds a round."""
        values: Mapping[str, Any] = row
        named = {tag: values.get(name) for tag, name in _SCALARS.items()}
        named |= {f"accuracy/{name}": value for name, value in row["other_accuracies"].items()}
        for tag, value in named.items():
            if value is not None:
                self._writer.add_scalar(tag, value, row["round"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def summary_writer() -> type[SummaryWriter]:
    """TensorBoard's writer. Raises UserError when it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "tensorboard is true; it needs TensorBoard, which is not installed: pip install tensorboard"
        ) from None
    return SummaryWriter
