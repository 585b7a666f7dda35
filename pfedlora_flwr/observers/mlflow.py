"""A run in MLflow (`observers=mlflow`): its keys, its rounds' lines, its result, its reports.

Where runs go is MLflow's own affair, by MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME; without the
first they go to the file `mlflow.db` of the run's directory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfedlora_flwr.errors import needed
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.observers.observer import Observer
from pfedlora_flwr.observers.scalars import scalars
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.rows import Result, RoundRow

_OUTPUT = "pfedlora.output"
"""The tag by which a resumed run is found again."""
_STATUS = {"completed": "FINISHED", "stopped": "KILLED"}
_OF_EVERY_ROUND = "seconds/round"
"""A number that each round's line has."""
_AT_ONCE = 100
"""Keys that MLflow takes in a call."""


class MLflow(Observer):
    """One run of MLflow for a run, which a resumed one goes on with. Raises UserError when MLflow
    is not installed."""

    def __init__(self) -> None:
        told = "observers names mlflow", "'pfedlora-flwr[mlflow]'"
        self._client_of = needed("mlflow.tracking", *told).MlflowClient
        self._entities = needed("mlflow.entities", *told)

    def begin(self, keys: Mapping[str, Scalar]) -> None:
        output = Path(str(keys["output"]))
        run = RunDirectory(output)
        experiment = self._experiment(output)
        runs = self._known(experiment, output) if keys["resume"] else []
        if runs:
            self._id = runs[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            made = self._client.create_run(
                experiment, run_name=output.name, tags={_OUTPUT: str(output)}
            )
            self._id = made.info.run_id
            params = [self._entities.Param(name, str(value)) for name, value in keys.items()]
            for at in range(0, len(params), _AT_ONCE):
                self._client.log_batch(self._id, params=params[at : at + _AT_ONCE])
        history = self._client.get_metric_history(self._id, _OF_EVERY_ROUND) if runs else []
        last = max((metric.step for metric in history), default=-1)
        for row in run.rounds():
            if row["round"] > last:
                self.round(row)

    def _experiment(self, output: Path) -> str:
        """The id of MLflow's experiment, which is made if there is none; the client is, too."""
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = self._client_of(tracking_uri=uri or f"sqlite:///{output / 'mlflow.db'}")
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "pfedlora")
        if found := self._client.get_experiment_by_name(name):
            return str(found.experiment_id)
        where = None if uri else (output / "mlflow").as_uri()
        return str(self._client.create_experiment(name, where))

    def _known(self, experiment: str, output: Path) -> list[Any]:
        """The last run of MLflow for this directory, if there is one."""
        tag = f"tags.`{_OUTPUT}` = '{output}'"
        return list(self._client.search_runs([experiment], tag, max_results=1))

    def round(self, row: RoundRow) -> None:
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(tag, value, now, row["round"])
            for tag, value in scalars(row).items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, result: Result) -> None:
        self._client.log_dict(self._id, dict(result), "result.json")
        self._client.set_terminated(self._id, _STATUS.get(result["status"], "FAILED"))

    def report(self, keys: Mapping[str, Scalar], folder: Path) -> None:
        output = Path(str(keys["output"]))
        for run in self._known(self._experiment(output), output):
            self._client.log_artifacts(run.info.run_id, str(folder), "report")
