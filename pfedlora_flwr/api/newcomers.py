"""Clients that were not in the run, from Python."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
import numpy.typing as npt
from torch import nn

from pfedlora_flwr.api.objects import Given
from pfedlora_flwr.api.process import as_it_was
from pfedlora_flwr.api.results import Run
from pfedlora_flwr.api.running import keys_of, named
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import absolute, from_json
from pfedlora_flwr.models.given import available
from pfedlora_flwr.ops import adapt as adapting
from pfedlora_flwr.runs.rows import AdaptedRow
from pfedlora_flwr.runs.store import ClientStore

if TYPE_CHECKING:
    from pfedlora_flwr.api.typed_keys import AdaptKeys, DataKeys, ReadingKeys


class Newcomer:
    """A client that was not in the run, with the personal model that `adapt` trained for it."""

    def __init__(self, path: Path, result: dict[str, Any], given: Given) -> None:
        self.path = path
        """Its folder, which holds the model and `adapted.json`."""
        self.result = result
        """The content of `adapted.json`: `accuracy` and `alone_accuracy` in [0, 1] on the client's
        own test part, `samples`, `visits`, `flops`. docs/output.md has every field."""
        self._run = Run(path, given)

    def __repr__(self) -> str:
        accuracy, alone = self.result["accuracy"], self.result["alone_accuracy"]
        return f"<Newcomer {self.path}: accuracy {accuracy:.4f}, alone {alone:.4f}>"

    def predict(
        self, inputs: Any, *, calibrated: bool = False, **keys: Unpack[ReadingKeys]
    ) -> npt.NDArray[np.float32]:
        """What its model says of inputs, as `Run.predict` takes them.

        Returns:
            Probabilities, float32 [n, classes].

        Raises:
            UserError: The model takes other inputs, or a file cannot be read.
        """
        return self._run.predict(self.result["client"], inputs, calibrated=calibrated, **keys)

    def class_names(self) -> list[str]:
        """The classes that its model tells apart, in order."""
        return self._run.class_names(self.result["client"])

    def evaluate(self, data: Any = None, **keys: Unpack[DataKeys]) -> dict[str, Any]:
        """Its model on labelled samples, as `Run.evaluate` does it.

        Raises:
            UserError: The data is missing, or of other inputs or classes than the model's.
        """
        return cast("dict[str, Any]", self._run.evaluate(self.result["client"], data, **keys))

    def export(
        self,
        output: str | PathLike[str] | None = None,
        *,
        format: str = "safetensors",
        overwrite: bool = False,
    ) -> Path:
        """Write its model as one file with a model card, as `Run.export` does.

        Raises:
            UserError: The file is there, a library is missing, or the model cannot be exported.
        """
        return self._run.export(self.result["client"], output, format=format, overwrite=overwrite)

    def model(self) -> nn.Module:
        """Its model with its normalisation, as `Run.model` gives it.

        Raises:
            UserError: The model is not there any more.
        """
        return self._run.model(self.result["client"])


def found(path: Path, given: Given, names: Mapping[str, object]) -> Newcomer | None:
    """The client whose model `adapt` left in a folder; None where there is none. names: keys with
    the objects given for it. Raises UserError for a damaged one, and for other objects than it was
    made with."""
    file = path / adapting.RESULT
    if not file.is_file():
        return None
    try:
        result = from_json(file.read_text(encoding="utf-8"))
        if missing := AdaptedRow.__required_keys__ - result.keys():
            raise ValueError(f"it has no {missing}")
        about = ClientStore(path / str(int(result["client"]))).about()
        keys = {**about["experiment"], **about["site"]}
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(f"{file} cannot be read as adapt writes it") from None
    for key, name in names.items():
        known = str(keys.get(key, "")).split(",")
        if other := [one for one in str(name).split(",") if one not in known]:
            raise UserError(
                f"{key} {other[0]} is not what the client was adapted with: {known[-1]}"
            )
    return Newcomer(path, result, given)


def adapt(
    place: Run | str | PathLike[str],
    output: str | PathLike[str],
    *,
    client: int | None = None,
    samples: int | None = None,
    overwrite: bool = False,
    **keys: Unpack[AdaptKeys],
) -> Newcomer:
    """Train a personal model for a client that was not in the run, from the final shared state and
    the client's own data, as `pfedlora adapt` does.

    Args:
        place: A run, its directory, or a file of `Run.export_shared`.
        output: The folder for the model and `adapted.json`.
        client: A held-out client. With `dataset` its number, which decides its model and its draws;
            None: the first one that no client of the run has.
        samples: The largest number of training samples, taken from its classes in turn; None: all.
        overwrite: Whether what `adapt` wrote to the folder before is replaced.
        keys: `dataset`, `data_path`, `models`, `rounds` (the number of its visits), `device`, and
            `data_…` of its dataset. `dataset` also takes (inputs, labels), `models` a class.

    Returns:
        The client, with its accuracy beside that of the same client alone.

    Raises:
        UserError: The client was in the run, its data or model does not fit the shared state, or
            the method shares nothing.
    """
    given = place._given if isinstance(place, Run) else Given()
    options = keys_of(named(**keys), added := Given())
    given, folder = given.joined(added), absolute(output)
    source = place.path if isinstance(place, Run) else absolute(place)
    with available(given.objects), as_it_was():
        row = adapting.adapt(
            source, folder, client=client, samples=samples, overwrite=overwrite, options=options
        )
    return Newcomer(folder, cast("dict[str, Any]", row), given)
