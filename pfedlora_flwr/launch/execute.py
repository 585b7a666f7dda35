"""Executes one Experiment: checks everything first, claims its directory, carries the run out, and
always leaves a result."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Protocol

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.launch.checks import Say, Start, check
from pfedlora_flwr.launch.flower import LaunchError, last_line
from pfedlora_flwr.launch.processes import SIGNALS, Stopped, stoppable
from pfedlora_flwr.launch.resources import resources
from pfedlora_flwr.launch.simulation import Simulation, claimed, stop_left_over
from pfedlora_flwr.observers.registry import observers_of
from pfedlora_flwr.runs.begin import Begin
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.layout import Row
from pfedlora_flwr.runs.lines import SoFar
from pfedlora_flwr.runs.output import from_here
from pfedlora_flwr.runs.result import write_result
from pfedlora_flwr.runs.rows import Result, Status, StoppedBy

Show = Callable[[Row | None, SoFar], None]
"""Told several times a second what the server is doing, as it writes it (None: nothing yet, or no
more), and the rounds so far."""


class Engine(AbstractContextManager["Engine"], Protocol):
    """What carries a run out, of which `Simulation` is one. Leaving it stops everything it
    started."""

    def run(self, show: Show) -> None:
        """Carries the run out, to the result in its directory. Raises LaunchError when none will
        come."""

    def save_log(self) -> None:
        """Keeps in the run's `logs` what was logged, for a run that is not completed. May raise
        LaunchError."""

    def lost(self) -> str:
        """What the run trained on and is gone, where there is more to go on with; otherwise
        empty."""


STOPPED: dict[signal.Signals, tuple[str, StoppedBy]] = {
    signal.SIGINT: ("stopped by the user", "user"),
    signal.SIGHUP: ("stopped, since its terminal was closed", "user"),
    signal.SIGTERM: ("stopped by SIGTERM", "system"),
}
"""What a signal leaves in the result: `error` and `stopped_by`."""
_LET_GO = 20.0
"""Seconds in which a process that was killed gives up its lock: its threads may end after it."""
LOCAL_NOTE = (
    "one client at a time in this process; for long runs `flwr run` with its actors, the default"
    " engine, is faster"
)


def execute(
    config: RunConfig, show: Show, say: Say, *, port: int = 0, engine: str = "flower"
) -> Result:
    """Runs the Experiment and returns its result, whatever came of it. Ctrl-C and SIGTERM stop the
    run.

    Raises UserError before anything has started.
    """
    start = Start(config, engine, port)
    check(start, say)
    run = start.run
    with claimed(run.path):
        stopped = stop_left_over(run.path)
        if stopped:
            say(f"stopped {stopped} processes that a killed launcher left running")
        run.check_unlocked(_LET_GO if stopped else 0.0)
        if start.done and (result := run.result()):
            observers = observers_of(config.execution)
            observers.begin(config.flat())
            observers.end(result)
            say(f"{from_here(run.path)} is completed: round {result['rounds']} was its last")
            return result
        carrier = _engine(start, say)
        for line in start.begin.words():
            say(line)
        if not start.begin.goes_on:
            run.clear_void()
        result = _carry_out(start.begin, carrier, show)
        survived = set[tuple[str, int]]()
        while result["status"] == "failed" and run.holds_run and (lost := carrier.lost()):
            # the same once more before a round was done
            if (again := (lost, run.last_round())) in survived:
                break
            survived.add(again)
            say(f"{lost}; going on without")
            start = replace(start, config=config.executed(resume=True, overwrite=False))
            carrier = _engine(start, say)
            result = _carry_out(start.begin, carrier, show)
        return result


def _engine(start: Start, say: Say) -> Engine:
    """Raises UserError if a node of a Ray cluster is not as it must be."""
    config = start.config
    if start.engine == "flower":
        simulation = Simulation(config, start.run, resources(config), start.port)
        for line in simulation.join():
            say(line)
        return simulation
    # imports Flower, which the launcher of a simulation does not need
    from pfedlora_flwr.launch.local import LocalRun

    return LocalRun(start.begin)


def _carry_out(begin: Begin, engine: Engine, show: Show) -> Result:
    """The result that the run left, or one that says why it left none."""
    run = begin.run
    status: Status = "failed"
    error, by = "", None
    earlier = _token(run)
    run.result_file.unlink(missing_ok=True)
    with stoppable(*SIGNALS), engine:
        try:
            engine.run(show)
        except Stopped as stop:
            show({"phase": "stopping"}, run.watched().look())
            status, error, by = "stopped", *STOPPED[stop.number]
        except LaunchError as failure:
            error = str(failure)
        result = run.result()
        if result is None or result["status"] != "completed":
            with suppress(LaunchError, Stopped):  # it is only there to be read
                engine.save_log()
    if result is None:
        error = (
            error or f"the server ended without a result: {last_line(run.logs / 'superlink.log')}"
        )
        begun = not begin.replaces or _token(run) != earlier
        result = write_result(run, begin.wanted, status, error, by, begun=begun)
    return result


def _token(run: RunDirectory) -> str:
    """The name of the run that is here; empty where there is none."""
    return run.token if run.token_file.exists() else ""
