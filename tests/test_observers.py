"""Observers of rounds: what they are told, and that they stop a run by a reason and never by an
error."""

from __future__ import annotations

import io
import logging
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pfedlora_flwr import config
from pfedlora_flwr.commands.display import conclude
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.observers import observer
from pfedlora_flwr.observers.observer import Observer, Observers
from pfedlora_flwr.observers.registry import observers_of
from pfedlora_flwr.observers.scalars import scalars
from pfedlora_flwr.observers.wandb import WeightsAndBiases
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.rows import Result, RoundRow
from tests.conftest import run_locally
from tests.test_resume import KEYS, extend, facts

TOLD: list[tuple[str, Any]] = []


@pytest.fixture(autouse=True)
def _nobody_was_told() -> Iterator[None]:
    TOLD.clear()
    yield
    TOLD.clear()


class Telling(Observer):
    """Keeps what it is told."""

    def begin(self, keys: Any) -> None:
        TOLD.append(("begin", keys))

    def round(self, row: RoundRow) -> str | None:
        TOLD.append(("round", dict(row)))
        row["accuracy"] = 2.0  # its own copy
        return None

    def end(self, result: Result) -> None:
        there = RunDirectory(Path(str(TOLD[0][1]["output"]))).result_file.exists()
        TOLD.append(("end", dict(result) | {"written": there}))


class Raising(Observer):
    """Raises whatever it is told."""

    def begin(self, keys: Any) -> None:
        raise ConnectionError("no route to the tracker")

    def round(self, row: RoundRow) -> str | None:
        raise SystemExit("I go")

    def end(self, result: Result) -> None:
        raise ValueError("still there?")


class Enough(Observer):
    """Stops after round 1."""

    def round(self, row: RoundRow) -> str | None:
        return "it is\nenough" if row["round"] == 1 else None


def observers(*made: Observer) -> Observers:
    return Observers({type(one).__name__: one for one in made})


ROW: Any = {"round": 1, "accuracy": 0.5}


def test_an_observer_that_raises_is_named_once_and_the_others_are_told(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    told = observers(Raising(), Telling())
    result: Result = {"status": "completed", "error": None}
    with caplog.at_level(logging.WARNING):
        told.begin({"output": str(tmp_path)})
        assert told.round(ROW) is None
        told.round(ROW)
        told.end(result)
        told.end(result)
    assert [what for what, _ in TOLD] == ["begin", "round", "round", "end"]
    assert ROW["accuracy"] == 0.5
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "observer Raising failed, and the run continues: ConnectionError: no route to the tracker"
    )
    assert list(result["observers"]) == ["Raising"]
    err = io.StringIO()
    conclude(
        {**result, "status": "failed"}, "", Console(quiet=True), Console(file=err, width=300), ""
    )
    assert err.getvalue().startswith("observer Raising failed: ConnectionError: no route")


def test_a_further_predictors_tag_is_never_the_personal_models() -> None:
    others = {"global": 0.6, "test": 0.99, "validation": 0.01}
    row: Any = {"accuracy": 0.5, "validation_accuracy": 0.4, "evaluated": 2, "admitted": [0]}
    assert scalars(row | {"other_accuracies": others}) == {
        "accuracy/test": 0.5,
        "accuracy/validation": 0.4,
        "accuracy/global": 0.6,
    }


def test_a_reason_is_one_line_that_names_its_observer() -> None:
    stop = observers(Telling(), Enough()).round(ROW)
    assert stop is not None
    assert (str(stop), stop.by) == ("stopped by Enough: it is enough", "observer")
    assert observers(Enough()).round(ROW | {"round": 2}) is None


def test_what_is_no_reason_stops_nothing_and_is_named() -> None:
    class Odd(Observer):
        def round(self, row: RoundRow) -> Any:
            return 7

    odd = observers(Odd())
    assert odd.round(ROW) is None
    assert odd.failed["Odd"].startswith("TypeError: round returned 7, expected None or a text")


def test_a_report_for_which_a_tracker_has_no_run_is_not_dropped_in_silence(tmp_path: Path) -> None:
    """MLflow's is in tests/test_trackers.py."""
    tracker = WeightsAndBiases.__new__(WeightsAndBiases)  # its library need not be there
    told = Observers({"wandb": tracker})
    told.report({"output": str(tmp_path)}, tmp_path / "report")
    assert "Weights & Biases has no run of" in told.failed["wandb"]


def test_an_unknown_observer_is_refused_before_anything_starts() -> None:
    with pytest.raises(
        UserError,
        match="allowed, separated by commas: tensorboard, mlflow, wandb, prometheus",
    ):
        observers_of(config.run_config({"observers": f"{__name__}:Enough, comet"}).execution)


@pytest.mark.slow
def test_observers_are_told_of_a_run_and_of_one_that_goes_on(tmp_path: Path) -> None:
    named = f"{__name__}:Telling,{__name__}:Raising"
    done = run_locally(
        tmp_path / "run", KEYS | {"rounds": 1, "evaluate-every": 1, "observers": named}
    )
    assert done.code == 0, done.stderr
    keys = TOLD[0][1]
    assert (keys["output"], keys["rounds"], keys["resume"]) == (str(done.output), 1, False)
    assert [row for what, row in TOLD if what == "round"] == done.rows("rounds.jsonl")
    [end] = [result for what, result in TOLD if what == "end"]
    assert not end.pop("written"), "a launcher ends the server once its result is there"
    assert end | {"observers": done.result["observers"]} == done.result
    assert [*done.result["observers"]] == [f"{__name__}:Raising"]
    TOLD.clear()
    extend(done.output, 2)
    assert [what for what, _ in TOLD] == ["begin", "round", "end"]
    assert TOLD[0][1]["resume"] is True
    assert TOLD[1][1]["round"] == 2
    TOLD.clear()
    extend(done.output, 2)  # there is nothing to run
    assert [what for what, _ in TOLD] == ["begin", "end"]


@pytest.mark.slow
def test_an_observers_reason_stops_a_run_which_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = run_locally(tmp_path / "a", KEYS | {"rounds": 3})
    stopped = run_locally(tmp_path / "b", KEYS | {"rounds": 3, "observers": f"{__name__}:Enough"})
    result = stopped.result
    assert (result["status"], result["stopped_by"], result["rounds"], result["resumable"]) == (
        "stopped",
        "observer",
        1,
        True,
    )
    assert stopped.stderr == f"stopped by {__name__}:Enough: it is enough"
    assert conclude(result, "", Console(quiet=True), Console(quiet=True), "") == 75
    extend(stopped.output, 3)
    assert facts(stopped) == facts(whole)


class Asking(Observer):
    """Asks a server that takes connections and answers none."""

    asked = 0

    def begin(self, keys: Any) -> None:
        type(self).asked += 1
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=0.2) as connection,
        ):
            connection.recv(1)

    def round(self, row: RoundRow) -> str | None:
        self.begin({})
        return None

    def end(self, result: Result) -> None:
        self.begin({})


@pytest.mark.slow
def test_a_tracker_that_cannot_write_or_does_not_answer_costs_a_run_one_wait_and_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "_PATIENCE", 0.1)
    keys = KEYS | {"observers": f"tensorboard,{__name__}:Asking"}
    assert run_locally(tmp_path / "run", keys | {"rounds": 1}).code == 0
    events = RunDirectory(tmp_path / "run").events
    shutil.rmtree(events)
    events.touch()
    done = run_locally(tmp_path / "run", keys | {"rounds": 2, "resume": True})
    assert (done.code, done.result["rounds"], Asking.asked) == (0, 2, 2)  # once a start
    told = done.result["observers"]
    assert {name: why.split(":")[0] for name, why in told.items()} == {
        "tensorboard": "FileExistsError",
        f"{__name__}:Asking": "TimeoutError",
    }
    log = (done.output / "logs" / "run.log").read_text()
    assert log.count("failed, and the run continues") == 2
