"""One Experiment executed: everything checked first, its directory claimed, the run carried out, and a result whatever came of it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol

from rich.console import Console

from pfedlora_flwr.data.local import shared_partition
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.launch.cluster import address_of
from pfedlora_flwr.launch.flower import LaunchError, last_line
from pfedlora_flwr.launch.processes import SIGNALS, Stopped, check_port, stoppable
from pfedlora_flwr.launch.resources import resources
from pfedlora_flwr.launch.simulation import Simulation, claimed, stop_left_over
from pfedlora_flwr.launch.trainable import check_trainable
from pfedlora_flwr.runs.directory import Row, RunDirectory
from pfedlora_flwr.runs.events import EventFiles, summary_writer
from pfedlora_flwr.runs.extension import repeated_round
from pfedlora_flwr.runs.lines import SoFar
from pfedlora_flwr.runs.output import from_here
from pfedlora_flwr.runs.privacy import SIMULATED
from pfedlora_flwr.runs.result import write_result
from pfedlora_flwr.runs.rows import Result, Status, StoppedBy
from pfedlora_flwr.runs.source import collect
from pfedlora_flwr.training.device import find_device

Show = Callable[[Row | None, SoFar], None]
"""Told several times a second what the server is doing, as it writes it (None: nothing yet, or no more), and the rounds so far."""


class Engine(AbstractContextManager["Engine"], Protocol):
    """What carries a run out, of which `Simulation` is one. Leaving it stops everything it started."""

    def run(self, show: Show) -> None:
        """Carries the run out, to the result in its directory. Raises LaunchError when none will come."""

    def save_log(self) -> None:
        """Keeps in the run's `logs` what was logged, for a run that is not completed. May raise LaunchError."""

    def lost(self) -> str:
        """What the run trained on and is gone, where there is more to go on with; otherwise empty."""


STOPPED: dict[signal.Signals, tuple[str, StoppedBy]] = {
    signal.SIGINT: ("stopped by the user", "user"),
    signal.SIGHUP: ("stopped, since its terminal was closed", "user"),
    signal.SIGTERM: ("stopped by SIGTERM", "system"),
}
"""What a signal leaves in the result: `error` and `stopped_by`."""
_NAMED = 10
"""Classes that a warning names."""
_LET_GO = 20.0
"""Seconds in which a process that was killed gives up its lock: its threads may end after it."""
LOCAL_NOTE = "one client at a time in this process; for long runs `flwr run` with its actors, the default engine, is faster"
ENGINES = ("flower", "local")
"""`flwr run` on a SuperLink of our own, with Ray's actors; or everything in this process, one client at a time."""


def continued(experiment: Experiment) -> Experiment:
    """The run as it goes on from what its directory holds. What one that was killed before its first line leaves is nothing to resume."""
    begun = RunDirectory(Path(experiment.output)).holds_run
    return experiment.replace(resume=begun, overwrite=not begun)


def execute(
    experiment: Experiment, show: Show, out: Console, *, port: int = 0, engine: str = "flower"
) -> Result:
    """Runs the Experiment and returns its result, whatever came of it. Ctrl-C and SIGTERM stop the run.

    Raises UserError before anything has started.
    """
    check_engine(engine, experiment.ray)
    if port and engine == "local":
        raise UserError("--port is for the engine flower: the local engine opens none")
    directory = Path(experiment.output)
    run = RunDirectory(directory)
    done = experiment.resume and run.is_completed(experiment)
    if not done:
        preflight(experiment)
        if engine == "flower":
            resources(experiment)
    run.check_free(experiment)
    if experiment.resume and not done:
        run.check_partition(shared_partition(experiment)[1].fingerprint)
    if port:
        check_port(port)
    dataset = shared_partition(experiment)[0]
    if empty := dataset.empty_classes:
        named = ", ".join(empty[:_NAMED]) + (", …" if len(empty) > _NAMED else "")
        told = f"{len(empty)} classes of the dataset have no {dataset.unit}: {named}"
        out.print(f"warning: {told}", markup=False, highlight=False, soft_wrap=True)
    if not done and (left_out := collect(experiment.flat()).warning):
        out.print(f"warning: {left_out}", markup=False, highlight=False, soft_wrap=True)
    if experiment.secagg_enabled:
        out.print(f"secagg.enabled: {SIMULATED}", markup=False, highlight=False, soft_wrap=True)
    with claimed(directory):
        stopped = stop_left_over(directory)
        if stopped:
            out.print(f"stopped {stopped} processes that a killed launcher had left running")
        run.check_unlocked(_LET_GO if stopped else 0.0)
        if done and (result := run.result()):
            if experiment.tensorboard:
                EventFiles(run.events, run.rounds()).close()
            out.print(
                f"{from_here(directory)} is completed: round {experiment.rounds} was its last",
                highlight=False,
                soft_wrap=True,
            )
            return result
        carrier = _engine(engine, experiment, run, port, out)
        if experiment.resume:
            out.print(_goes_on(experiment, run), highlight=False, soft_wrap=True)
        else:
            run.clear_void()
        run.result_file.unlink(missing_ok=True)
        result = _carry_out(experiment, run, carrier, show)
        survived = set[tuple[str, int]]()
        while result["status"] == "failed" and run.holds_run and (lost := carrier.lost()):
            if (
                again := (lost, run.last_round(experiment))
            ) in survived:  # the same once more before a round was done
                break
            survived.add(again)
            out.print(f"{lost}; going on without", markup=False, highlight=False, soft_wrap=True)
            experiment = experiment.replace(resume=True, overwrite=False)
            carrier = _engine(engine, experiment, run, port, out)
            run.result_file.unlink(missing_ok=True)
            result = _carry_out(experiment, run, carrier, show)
        return result


def check_engine(engine: str, ray: str = "") -> None:
    """Raises UserError for an unknown one, or one that does not train on the Ray cluster `ray`."""
    if engine not in ENGINES:
        raise UserError(f"--engine is {engine!r}; allowed: {', '.join(ENGINES)}")
    if ray and engine != "flower":
        raise UserError(
            f"ray is {ray!r}, a cluster, and --engine {engine} trains in this process: give one of them"
        )


def preflight(experiment: Experiment) -> None:
    """Everything that can be known to be wrong before a process is started. Raises UserError."""
    if not address_of(experiment):  # a cluster's GPUs need not be here
        find_device(experiment.device)
    if experiment.tensorboard:
        summary_writer()
    check_trainable(experiment)


def _goes_on(e: Experiment, run: RunDirectory) -> str:
    """What is resumed, and from which round."""
    run.check_models(e)
    saved, last = run.experiment(), run.last_round(e)
    words = f"continuing {e.method} on {e.dataset} in {from_here(run.path)}: rounds {last + 1} to {e.rounds}"
    if e.rounds == saved.rounds:
        return words
    again = (
        f"; round {saved.rounds} is done again, since a run of {e.rounds} does not evaluate in it"
        if repeated_round(saved, e, run.checkpoints)
        else ""
    )
    return f"{words} (it was to end at {saved.rounds}{again})"


def _engine(
    name: str, experiment: Experiment, run: RunDirectory, port: int, out: Console
) -> Engine:
    """Raises UserError where a node of a Ray cluster is not as it must be."""
    if name == "flower":
        simulation = Simulation(experiment, run, resources(experiment), port)
        for line in simulation.join():
            out.print(line, markup=False, highlight=False, soft_wrap=True)
        return simulation
    from pfedlora_flwr.launch.local import (
        LocalRun,
    )  # imports Flower, which the launcher of a simulation does not need

    return LocalRun(experiment, run)


def _carry_out(experiment: Experiment, run: RunDirectory, engine: Engine, show: Show) -> Result:
    """The result that the run left, or one that says why it left none."""
    status: Status = "failed"
    error, by = "", None
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
        result = write_result(run, experiment, status, error, by)
    return result
