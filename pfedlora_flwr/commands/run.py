"""`pfedlora run`: checks everything first, starts the simulation, shows where it is, and says what came of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from pfedlora_flwr.commands.events import event_files
from pfedlora_flwr.data.local import count_classes, shared_partition
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.launch.simulation import LaunchError, Simulation, check_port, claimed, last_line, runs, stop_left_over
from pfedlora_flwr.methods import registry
from pfedlora_flwr.rng import derive
from pfedlora_flwr.runs.directory import Row, RunDirectory
from pfedlora_flwr.runs.result import write_result
from pfedlora_flwr.runs.rows import Result, RoundRow, Status
from pfedlora_flwr.training.device import find_device

_START_TIMEOUT, _LOOK = 180.0, 15.0
FAILED, INTERRUPTED = 1, 130
Show = Callable[[str, list[RoundRow]], None]


def run(experiment: Experiment, out: Console, err: Console, *, port: int = 0, quiet: bool = False, tensorboard: bool = False) -> int:
    """Runs the Experiment and returns the exit code: 0 only for a completed run. Raises UserError before anything has started."""
    directory, shown = Path(experiment.output), 0
    events = event_files(directory) if tensorboard else None
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}"), TimeElapsedColumn()
    progress = Progress(*columns, console=out, transient=True, refresh_per_second=4, disable=quiet)
    task = progress.add_task(experiment.method, total=experiment.rounds, what="starting")

    def show(what: str, rounds: list[RoundRow]) -> None:
        nonlocal shown
        progress.start()
        progress.update(task, completed=rounds[-1]["round"] if rounds else 0, what=what)
        if len(rounds) > shown and not quiet and not out.is_terminal:
            out.print(_line(experiment, rounds), highlight=False)
        if events is not None:
            events.write(rounds)
        shown = len(rounds)

    try:
        result = execute(experiment, show, out, port=port)
    finally:
        progress.stop()
        if events is not None:
            events.close()
    return conclude(result, directory, out, err)


def execute(experiment: Experiment, show: Show, out: Console, *, port: int = 0) -> Result:
    """Runs the Experiment and returns its result, whatever came of it. Ctrl-C and SIGTERM stop the run.

    `show` is told several times a second what the run is doing, in words, with the lines of its rounds so far.
    Raises UserError before anything has started.
    """
    directory = Path(experiment.output)
    preflight(experiment)
    run_directory = RunDirectory(directory)
    run_directory.check_free(experiment)
    if port:
        check_port(port)
    with claimed(directory):
        stopped = stop_left_over(directory)
        if stopped:
            out.print(f"stopped {stopped} processes that a killed launcher had left running")
        run_directory.check_unlocked()
        run_directory.result_file.unlink(missing_ok=True)
        return _simulate(experiment, run_directory, show, port)


def _simulate(experiment: Experiment, run_directory: RunDirectory, show: Show, port: int) -> Result:
    directory = run_directory.path
    actors, gpus = resources(experiment)
    status: Status = "failed"
    error = ""
    on_terminate(signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal was closed
    with Simulation(experiment, directory, actors, gpus, port) as simulation:
        try:
            simulation.start()
            _watch(experiment, simulation, run_directory, show)
        except KeyboardInterrupt:
            status, error = "stopped", "stopped by the user"
        except LaunchError as failure:
            error = str(failure)
        result = run_directory.result()
        if result is None or result["status"] != "completed":
            with suppress(LaunchError):  # it is only there to be read
                simulation.save_log()
    if result is None:
        error = error or f"the server ended without a result: {last_line(run_directory.logs / 'superlink.log')}"
        result = write_result(run_directory, experiment, status, error)
    return result


def preflight(experiment: Experiment) -> None:
    """Everything that can be known to be wrong before a process is started. Raises UserError."""
    find_device(experiment.device)
    shared_partition(experiment)
    method = registry.make(experiment, count_classes(experiment))
    for client in range(min(len(experiment.model_names), experiment.clients)):
        method.client_model(client)
    method.state_init(derive(experiment.seed, "state"))


def resources(experiment: Experiment) -> tuple[int, float]:
    """Actors and GPUs: one single-threaded actor a core, or one actor that holds the GPU."""
    gpu = find_device(experiment.device).type == "cuda"
    actors = experiment.actors or (1 if gpu else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return min(actors, max(1, experiment.clients)), float(torch.cuda.device_count()) if gpu else 0.0


def conclude(result: Result, directory: Path | str, out: Console, err: Console) -> int:
    """Prints what came of the run; the exit code."""
    if result["status"] == "completed":
        out.print(client_table(result))
        out.print(summary(result), highlight=False, soft_wrap=True)
        out.print(f"everything is in {directory}", highlight=False, soft_wrap=True)
        return 0
    hint = "; continue it with --resume" if "rounds" in result else ""
    err.print(f"{result['status']}: {result['error']}{hint}", markup=False, highlight=False)
    return INTERRUPTED if result["status"] == "stopped" else FAILED


def client_table(result: Result) -> Table:
    """A line a client, at most 20."""
    table = Table(title=f"{result['method']} on {result['dataset']}: personalised test accuracy by client")
    for name in ("client", "model", "training samples", "last trained in round", "accuracy"):
        table.add_column(name, justify="left" if name == "model" else "right")
    rows = list(result["per_client"].items())
    for client, row in rows[:20]:
        table.add_row(client, row["model"], str(row["samples"] or "-"), str(row["last_round"]), f"{row['accuracy']:.4f}")
    if len(rows) > 20:
        table.add_row("…", f"{len(rows) - 20} more in result.json", "", "", "")
    return table


def summary(result: Result) -> str:
    """The figures of a completed run, in three lines."""
    a, c, s = result["accuracy"], result["communication"], result["seconds"]
    return (
        f"mean test accuracy {a['final']:.4f} final, {a['at_best_validation']:.4f} at best validation "
        f"(round {a['best_validation_round']}), {a['max_test']:.4f} max; worst client {a['worst']:.4f}, std {a['std']:.4f}\n"
        f"sent up {c['parameters_up']:,} parameters ({megabytes(c['bytes_up'])}), "
        f"down {c['parameters_down']:,} ({megabytes(c['bytes_down'])}); "
        f"computed {result['flops']:.3g} FLOP\n"
        f"{result['rounds']} rounds in {s['total']:.1f} s, {s['per_round_median']:.2f} s a round; "
        f"{s['busy_share']:.0%} of {s['workers']} workers' time spent training or evaluating"
    )


def megabytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB"


def _watch(experiment: Experiment, simulation: Simulation, directory: RunDirectory, show: Show) -> None:
    """Shows the run until its result is there, or its server is gone."""
    deadline, next_look = time.monotonic() + _START_TIMEOUT, time.monotonic() + _LOOK
    began, rounds, size = time.time(), list[RoundRow](), 0
    while directory.result() is None:
        state = directory.doing()
        if state and state["time"] < began:  # an earlier server's: this one has not taken up the directory yet
            state = None
        if state and directory.rounds_size() != size:
            rounds, size = directory.rounds(), directory.rounds_size()
        show(_what(experiment, state, rounds), rounds)
        if not simulation.alive():
            raise LaunchError(f"the SuperLink is gone: {last_line(simulation.logs / 'superlink.log')}")
        if state and not runs(state["pid"]):
            time.sleep(0.5)
            if directory.result() is None:
                raise LaunchError(f"the server process is gone: {last_line(simulation.logs / 'superlink.log')}")
        if not state and time.monotonic() > next_look:
            status, next_look = simulation.status(), time.monotonic() + _LOOK
            if status.startswith("finished") or time.monotonic() > deadline:
                simulation.save_log()
                raise LaunchError(f"the server did not start (Flower says {status}): {last_line(simulation.logs / 'run.log')}")
        time.sleep(0.1)
    rounds = directory.rounds()
    show(_what(experiment, None, rounds), rounds)


def _what(e: Experiment, state: Row | None, rounds: list[RoundRow]) -> str:
    phase = state["phase"] if state else "starting"
    if phase == "connecting" and state:
        return f"{state['done']} of {state['of']} clients connected"
    if not rounds:
        return f"evaluating the initial models: {state['done']} of {state['of']}" if phase == "evaluating" and state else "starting"
    return _line(e, rounds) + (f" · {state['done']}/{state['of']}" if phase in ("training", "evaluating") and state else "")


def _line(e: Experiment, rounds: list[RoundRow]) -> str:
    last, recent = rounds[-1], [row["seconds"] for row in rounds if row["round"]][-5:]
    sent = sum(row["bytes_up"] + row["bytes_down"] for row in rounds)
    left = (e.rounds - last["round"]) * sum(recent) / len(recent) if recent else None
    time_left = f" · {left:.0f} s left" if left is not None else ""
    return f"round {last['round']}/{e.rounds} · accuracy {last['accuracy']:.4f} · {megabytes(sent)}{time_left}"


def on_terminate(*numbers: signal.Signals) -> None:
    """From here on these signals are taken like Ctrl-C."""

    def interrupt(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)
