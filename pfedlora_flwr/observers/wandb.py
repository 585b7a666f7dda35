"""A run in Weights & Biases (`observers=wandb`): its keys, its rounds' lines, its result, its
reports.

Where runs go is its own affair, by WANDB_PROJECT, WANDB_MODE and the like. Without WANDB_MODE and
WANDB_API_KEY they are written offline, into the folder `wandb` of the run's directory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfedlora_flwr.errors import UserError, needed
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.observers.observer import Observer
from pfedlora_flwr.observers.scalars import scalars
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.rows import Result, RoundRow

_ID = "wandb-id"
"""The file with the run's name there."""
_SECONDS = 10.0
"""Its server may take to answer."""


class WeightsAndBiases(Observer):
    """One run of Weights & Biases for a run, which a resumed one goes on with. Raises UserError
    when its library is not installed."""

    def __init__(self) -> None:
        self._wandb = needed("wandb", "observers names wandb", "'pfedlora-flwr[wandb]'")

    def begin(self, keys: Mapping[str, Scalar]) -> None:
        output = Path(str(keys["output"]))
        file = output / _ID
        if not (keys["resume"] and file.exists()):
            told = f"{output}{os.times().elapsed}"
            file.write_text(hashlib.sha256(told.encode()).hexdigest()[:16])
        self._run = self._opened(keys, output)
        for row in RunDirectory(output).rounds():
            self.round(row)

    def _opened(self, keys: Mapping[str, Scalar], output: Path) -> Any:
        online = "WANDB_API_KEY" in os.environ
        return self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "pfedlora"),
            id=(output / _ID).read_text(),
            name=output.name,
            config=dict(keys),
            dir=str(output),
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "online" if online else "offline"),
            settings=self._wandb.Settings(console="off", silent=True, init_timeout=_SECONDS),
        )

    def round(self, row: RoundRow) -> None:
        self._run.log(scalars(row), step=row["round"])

    def end(self, result: Result) -> None:
        self._run.summary.update(json.loads(json.dumps({"result": result})))
        self._run.finish(exit_code=0 if result["status"] == "completed" else 1)

    def report(self, keys: Mapping[str, Scalar], folder: Path) -> None:
        output = Path(str(keys["output"]))
        if not (output / _ID).exists():
            raise UserError(f"Weights & Biases has no run of {output}: it has no file {_ID}")
        run = self._opened(keys, output)
        artefact = self._wandb.Artifact(f"report-{run.id}", type="report")
        artefact.add_dir(str(folder))
        run.log_artifact(artefact)
        run.finish()
