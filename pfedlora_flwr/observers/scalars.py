"""The numbers of a round's line that trackers log, by the names that they have there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pfedlora_flwr.runs.rows import RoundRow, accuracy_of
from pfedlora_flwr.training.metrics import BESIDE_ACCURACY

_SCALARS = {
    "accuracy/test": "accuracy",
    "accuracy/validation": "validation_accuracy",
    **{f"scores/{name}": name for name in BESIDE_ACCURACY},
    "loss/training": "loss",
    "communication/parameters_up": "parameters_up",
    "communication/parameters_down": "parameters_down",
    "communication/bytes_up": "bytes_up",
    "communication/bytes_down": "bytes_down",
    "computation/flops": "flops",
    "seconds/round": "seconds",
    "lora/aggregation_error": "aggregation_error",
}


def scalars(row: RoundRow) -> dict[str, float]:
    """By tag; what the line does not have is left out."""
    values: Mapping[str, Any] = row
    if accuracy_of(row) is None:
        values = {**row, "accuracy": None, "validation_accuracy": None}
    named = {tag: values.get(name) for tag, name in _SCALARS.items()}
    others = {f"accuracy/{name}": value for name, value in row["other_accuracies"].items()}
    # rows of older versions may have names that are ours
    return {tag: value for tag, value in (others | named).items() if value is not None}
