"""A run's status for Prometheus (`observers=prometheus`): a text file for node_exporter's textfile
collector, written anew at the run's begin, after each round, and at its end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import needed
from pfedlora_flwr.keys import Scalar
from pfedlora_flwr.observers.observer import Observer
from pfedlora_flwr.runs.layout import RunFiles
from pfedlora_flwr.runs.rows import Result, RoundRow, Status
from pfedlora_flwr.runs.status import RunStatus, State, status_of

_STATES: tuple[State, ...] = ("running", *get_args(Status))
_OF_RUN = {
    "round": "Completed rounds.",
    "rounds": "Rounds of the whole run.",
    "clients": "Number of clients.",
    "accuracy": "Mean test accuracy after the last round, in [0, 1].",
    "seconds_left": "Estimated seconds until the run's end.",
    "disk_used": "Bytes in the run's directory.",
    "disk_free": "Bytes that are free on the file system of the run's directory.",
}
"""Gauges of a run, by their fields of RunStatus; what is null there is left out."""
_NAMES = {"disk_used": "disk_used_bytes", "disk_free": "disk_free_bytes"}
_OF_CLIENT = {
    "round": ("client_round", "The last round that admitted an update of the client; 0: none."),
    "seen": ("client_seen_timestamp_seconds", "When that round ended, in Unix time."),
    "in_a_row": ("client_failures_in_a_row", "Failed visits since its last admitted update."),
}
"""Gauges of a client: their names and meanings, by the fields of ClientStatus."""
_COUNTED = {
    "failures": ("client_failures", "Failed visits of the client."),
    "refused": ("client_refused_updates", "Updates of the client that were refused."),
}
"""Counters of a client, whose names end in `_total`."""


class Prometheus(Observer):
    """The file `metrics.prom` of the run's directory. Each sample names its run by the directory's
    last part. Raises UserError when Prometheus' client library is not installed."""

    def __init__(self) -> None:
        told = "observers=prometheus needs prometheus_client", "'pfedlora-flwr[metrics]'"
        self._library = needed("prometheus_client", *told)
        self._core = needed("prometheus_client.core", *told)

    def begin(self, keys: Mapping[str, Scalar]) -> None:
        self._run = RunFiles(Path(str(keys["output"])))
        self._experiment = from_flat(keys)
        self._standing = self._run.standing()
        self._write("running")

    def round(self, row: RoundRow) -> None:
        self._write("running")

    def end(self, result: Result) -> None:
        self._write(result["status"])

    def collect(self) -> Iterator[Any]:
        """The samples, as the library asks a collector for them."""
        status, run = self._status, self._run.path.name
        state = self._gauge("run_state", "1 for the state that the run is in.", "state")
        for one in _STATES:
            state.add_metric([run, one], float(one == status["state"]))
        yield state
        written = self._gauge("written_timestamp_seconds", "When this file was written.")
        written.add_metric([run], self._written)
        yield written
        values: Mapping[str, Any] = status
        for field, meaning in _OF_RUN.items():
            if values[field] is not None:
                gauge = self._gauge(_NAMES.get(field, field), meaning)
                gauge.add_metric([run], values[field])
                yield gauge
        for field, (name, meaning) in _OF_CLIENT.items():
            yield self._by_client(self._gauge(name, meaning, "client"), field)
        for field, (name, meaning) in _COUNTED.items():
            counter = self._core.CounterMetricFamily(
                f"pfedlora_{name}", meaning, labels=["run", "client"]
            )
            yield self._by_client(counter, field)

    def _write(self, state: State) -> None:
        self._status: RunStatus = status_of(self._run, state, None, self._standing.look())
        self._written = time.time()
        registry = self._library.CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._library.write_to_textfile(str(self._run.metrics), registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Any:
        return self._core.GaugeMetricFamily(f"pfedlora_{name}", meaning, labels=["run", *labels])

    def _by_client(self, family: Any, field: str) -> Any:
        """A sample of each client that has not left: 0 before its first line, from which a counter
        can then rise; of `seen` none."""
        known, gone = self._status["per_client"], self._experiment.gone(self._status["round"] + 1)
        for number in range(self._experiment.trained_clients):
            values: Mapping[str, Any] = known.get(str(number), {})
            value = values.get(field, None if field == "seen" else 0)
            if value is not None and number not in gone:
                family.add_metric([self._run.path.name, str(number)], value)
        return family
