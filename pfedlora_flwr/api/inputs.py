"""What a prediction is asked of from Python: arrays, data frames, files or texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy.typing as npt

from pfedlora_flwr.api.given_arrays import array_of
from pfedlora_flwr.data.arrays import check_finite, columns_of, of_frame, with_columns
from pfedlora_flwr.data.tables import as_bytes
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.ops.read_inputs import read, reading_of
from pfedlora_flwr.runs.trained import Trained
from pfedlora_flwr.training.kinds import TEXT


def inputs_of(trained: Trained, inputs: Any, options: Mapping[str, object]) -> npt.NDArray[Any]:
    """Inputs as a dataset has them, from an array, from files or from texts. options: as
    `reading_of` has them. Raises UserError."""
    task = trained.task
    if task.kind == TEXT and hasattr(inputs, "tolist"):  # an array or a column
        inputs = inputs.tolist()
    of_texts = task.kind == TEXT and isinstance(inputs, list) and _begins(inputs, str)
    if isinstance(inputs, str | PathLike):
        inputs = [inputs]
    files = not of_texts and isinstance(inputs, Sequence) and _begins(inputs, str | PathLike)
    paths = [Path(fspath(path)) for path in inputs] if files else []
    how = reading_of(trained, options, paths)
    if of_texts:
        return as_bytes("inputs", inputs, task.shape[0])
    if paths:
        asked = read(paths, task, trained.feature_names, how)
        if asked.broken:
            raise UserError(asked.broken[0])
        return asked.inputs
    if trained.feature_names and hasattr(inputs, "columns"):
        if how.plain:
            inputs = with_columns("inputs", inputs, trained.feature_names)
        else:
            how = replace(how, feature_names=trained.feature_names)
            inputs, _ = of_frame("inputs", inputs, how)
    elif columns_of("inputs", inputs):
        raise UserError(
            "inputs is a data frame, and the model does not know its columns by name, because its"
            " data had no names; give an array"
        )
    array = array_of("inputs", inputs)
    found = task.kind.taken(array)
    if found is None or not len(found) or task.kind.shape_of(found) != task.shape:
        raise UserError(
            f"inputs is {array.dtype} {list(array.shape)}; the model of client {trained.client}"
            f" takes {task}: expected {task.kind.arrays}"
        )
    check_finite("inputs", found, missing=how.fills)
    return found


def _begins(inputs: Sequence[Any], kind: Any) -> bool:
    return bool(inputs) and isinstance(inputs[0], kind)
