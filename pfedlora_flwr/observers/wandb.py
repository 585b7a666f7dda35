"""A run in Weights & Biases (`observers=wandb`): its keys, its rounds' lines, its result.

Where runs go is its own affair, by WANDB_PROJECT, WANDB_MODE and the like. Without WANDB_MODE and
WANDB_API_KEY they are written offline, into the folder `wandb` of the run's directory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from pfedlora_flwr.errors import needed
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.observers.observer import Observer
from pfedlora_flwr.observers.scalars import scalars
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.rows import Result, RoundRow


class WeightsAndBiases(Observer):
    """One run of Weights & Biases for a run, which a resumed one goes on with. Raises UserError
    when its library is not installed."""

    def __init__(self) -> None:
        self._wandb = needed("wandb", "observers names wandb", "'pfedlora-flwr[wandb]'")

    def begin(self, keys: Mapping[str, Scalar]) -> None:
        output = Path(str(keys["output"]))
        online = "WANDB_API_KEY" in os.environ
        file = output / "wandb-id"
        if not (keys["resume"] and file.exists()):
            told = f"{output}{os.times().elapsed}"
            file.write_text(hashlib.sha256(told.encode()).hexdigest()[:16])
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "pfedlora"),
            id=file.read_text(),
            name=output.name,
            config=dict(keys),
            dir=str(output),
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "online" if online else "offline"),
            settings=self._wandb.Settings(console="off", silent=True),
        )
        for row in RunDirectory(output).rounds():
            self.round(row)

    def round(self, row: RoundRow) -> None:
        self._run.log(scalars(row), step=row["round"])

    def end(self, result: Result) -> None:
        self._run.summary.update(json.loads(json.dumps({"result": result})))
        self._run.finish(exit_code=0 if result["status"] == "completed" else 1)
