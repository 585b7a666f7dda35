"""A run in MLflow (`observers=mlflow`): its keys, its rounds' lines, its result, its reports.

Where runs go is MLflow's own affair, by MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME; without the
first they go to the file `mlflow.db` of the run's directory."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pfedlora_flwr.errors import UserError, needed
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.observers.observer import Observer
from pfedlora_flwr.observers.scalars import scalars
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.rows import Result, RoundRow

_ID = "mlflow-id"
"""The file with the id of MLflow's run, by which it is found again."""
_OUTPUT = "pfedlora.output"
"""The tag that names the run's directory."""
_STATUS = {"completed": "FINISHED", "stopped": "KILLED"}
_OF_EVERY_ROUND = "seconds/round"
"""A number that each round's line has."""
_AT_ONCE = 100
"""Keys that MLflow takes in a call."""


_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
"""Unless they say otherwise: MLflow would ask a server that is down for minutes."""


class MLflow(Observer):
    """One run of MLflow for a run, which a resumed one goes on with. Raises UserError when MLflow
    is not installed."""

    def __init__(self) -> None:
        told = "observers names mlflow", "'pfedlora-flwr[mlflow]'"
        self._client_of = needed("mlflow.tracking", *told).MlflowClient
        self._entities = needed("mlflow.entities", *told)
        self._error = needed("mlflow.exceptions", *told).MlflowException

    def begin(self, keys: Mapping[str, Scalar]) -> None:
        output = Path(str(keys["output"]))
        run = RunDirectory(output)
        self._connect(output)
        known = self._known(output) if keys["resume"] else ""
        self._id = known or self._made(output)
        (output / _ID).write_text(self._id)
        if known:
            self._client.update_run(self._id, status="RUNNING")
        else:
            params = [self._entities.Param(name, str(value)) for name, value in keys.items()]
            for at in range(0, len(params), _AT_ONCE):
                self._client.log_batch(self._id, params=params[at : at + _AT_ONCE])
        history = self._client.get_metric_history(self._id, _OF_EVERY_ROUND) if known else []
        last = max((metric.step for metric in history), default=-1)
        for row in run.rounds():
            if row["round"] > last:
                self.round(row)

    def _connect(self, output: Path) -> None:
        """Makes the client; in the run's own database, the run's artefacts are where it is now."""
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        self._artefacts = None if uri else (output / "mlflow").as_uri()
        database = output / "mlflow.db"
        self._client = self._client_of(tracking_uri=uri or f"sqlite:///{database}")
        was = found.artifact_location if (found := self._experiment()) else ""
        if self._artefacts and was != self._artefacts and was.endswith("/mlflow"):
            _move(database, was, self._artefacts)

    def _experiment(self) -> Any:
        """MLflow's experiment; None if there is none."""
        return self._client.get_experiment_by_name(_experiment_name())

    def _made(self, output: Path) -> str:
        """The id of a new run of MLflow, with its experiment if there is none."""
        found = self._experiment()
        if found:
            experiment = found.experiment_id
        else:
            experiment = self._client.create_experiment(_experiment_name(), self._artefacts)
        tags = {_OUTPUT: str(output)}
        return str(self._client.create_run(experiment, run_name=output.name, tags=tags).info.run_id)

    def _known(self, output: Path) -> str:
        """The id of MLflow's run of this directory, by its file; empty if there is none."""
        file = output / _ID
        if file.exists():
            try:
                info = self._client.get_run(file.read_text()).info
            except self._error as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            else:
                if info.lifecycle_stage == "active":
                    return str(info.run_id)
        return ""

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
        self._connect(output)
        if not (known := self._known(output)):
            raise UserError(
                f"MLflow has no run of {output}; set MLFLOW_TRACKING_URI as it was for the run"
            )
        self._client.log_artifacts(known, str(folder), "report")


def _experiment_name() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", "pfedlora")


def _move(database: Path, old: str, new: str) -> None:
    """Of a run that was moved: MLflow keeps absolute places, and has no call to change them."""
    with closing(sqlite3.connect(database)) as opened, opened:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            opened.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?)"
                f" WHERE substr({column}, 1, ?) = ?",
                (new, len(old) + 1, len(old), old),
            )
