"""The Flower ServerApp: opens the run directory, drives the rounds, writes `result.json`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.data.registry import find
from pfedlora_flwr.errors import (
    UserError,
    brief,
    is_ours,
    names_traceback,
    no_room,
    permissions,
    with_traceback,
)
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.federation.census import of_server
from pfedlora_flwr.federation.clients import RunDiverged, RunFailed
from pfedlora_flwr.federation.flower_compat import (
    OneMachine,
    RunNotRunningException,
    in_one_machine,
    is_simulation,
)
from pfedlora_flwr.federation.server_state import first_state
from pfedlora_flwr.federation.strategy import PersonalisedStrategy
from pfedlora_flwr.observers.observer import Observer, Observers, RunStopped
from pfedlora_flwr.observers.registry import observers_of
from pfedlora_flwr.observers.status_line import StatusLine
from pfedlora_flwr.runs import begin, code_copy, comparison_run
from pfedlora_flwr.runs.begin import Begin
from pfedlora_flwr.runs.checkpoint import ServerState
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.output import on_the_server
from pfedlora_flwr.runs.result import LINE, RESULT_LINE, write_result
from pfedlora_flwr.runs.rows import SPENT, Result, Status, StoppedBy

logger = logging.getLogger(__name__)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """A run, new or resumed; its own log and, at the end, its result go into Flower's log."""
    _log_to_stderr()
    with _last_line():
        # a simulation's directory is at hand where it is started
        also = {} if is_simulation(grid) else {"status line": StatusLine()}
        tell = partial(_tell, files=bool(context.run_config.get("comparison-run")))
        serve(grid, context, tell, also)


def serve(
    grid: Grid,
    context: Context,
    tell: Callable[[str, Result], None] = lambda directory, result: None,
    also: Mapping[str, Observer] = MappingProxyType({}),
) -> None:
    """A run, new or resumed. It ends with `result.json`, whatever happens; a failure is raised, so
    that Flower marks the run failed. Unless all is on one machine, its keys name here what
    `permissions.VARIABLE` allows.

    tell: is handed the run's directory and its result at the end. also: observers, by name, beside
    those of the keys."""
    torch.set_num_threads(1)  # what the server computes must not depend on its number of cores
    with ExitStack() as whole:
        try:
            allowed = permissions.ANYTHING if in_one_machine(grid) else permissions.of_server()
            whole.enter_context(permissions.held(allowed))
            config = of_server(grid, context.run_config)
            if not isinstance(grid, OneMachine):
                config.execution.check_lanes()
            opened = _open(config, also, simulated=is_simulation(grid))
            way = opened[0]
            kept = way.goes_on and way.run.parts_file.exists()
            if in_one_machine(grid) and not (kept or find(way.config.experiment.dataset).shape):
                way.run.keep_rows(Setup.of(way.config))
        except (UserError, OSError) as error:
            tell("", {"status": "failed", "error": reason_of(error)})
            raise error from None
        try:
            with _strategy(*opened, tell) as strategy:
                strategy.complete(grid)
        except RunStopped:
            pass  # no failure in Flower's eyes


@contextmanager
def strategy_of(config: RunConfig) -> Iterator[PersonalisedStrategy]:
    """The strategy of a ServerApp of one's own: `complete(grid)` does the rounds that are left.

    It takes up the run's directory, `output`, calls the observers that the keys name, and leaves
    `result.json` there at the end: of a stopped run, if something is left to do. What is raised
    within is in the result, and goes on: RunStopped, too, by which an observer, `max-hours` or a
    spent budget of privacy ends the run.

    Args:
        config: The run's keys (`config.run_config`); `output` is an absolute path.

    Raises:
        UserError: The directory is in use, or holds another run.
    """
    torch.set_num_threads(1)  # what the server computes must not depend on its number of cores
    _log_to_stderr()
    with _last_line():
        try:
            opened = _open(config, {"status line": StatusLine()})
        except (UserError, OSError) as error:
            _tell("", {"status": "failed", "error": reason_of(error)})
            raise
        with _strategy(*opened, _tell) as strategy:
            yield strategy


@contextmanager
def _last_line() -> Iterator[None]:
    """Within it what is raised is said in Flower's log as `LineLast` has it."""
    try:
        yield
    except Exception as error:
        logging.getLogger("flwr").addFilter(LineLast(error))
        raise


def _open(
    config: RunConfig,
    also: Mapping[str, Observer] = MappingProxyType({}),
    *,
    simulated: bool = False,
) -> tuple[Begin, Observers]:
    """How the run begins, in a directory that this process has for itself; and its observers.
    simulated: the clients' models are in it."""
    observers, of = observers_of(config.execution, also), config.execution.comparison_run
    config = comparison_run.taken_up(config)
    run = RunDirectory(Path(config.execution.output) if of else on_the_server(config))
    way = begin.find(run, config)
    way.check()
    way.claim(simulated=simulated)
    comparison_run.number_sites(run, of)
    return way, observers


@contextmanager
def _strategy(
    way: Begin,
    observers: Observers,
    tell: Callable[[str, Result], None] = lambda directory, result: None,
) -> Iterator[PersonalisedStrategy]:
    """The strategy of an opened run, whose result is written at the end, whatever happens, and
    handed to `tell`."""
    run, config = way.run, way.config

    def end(
        status: Status, reason: str | None = None, by: StoppedBy | None = None, **more: Any
    ) -> None:
        result = write_result(run, config, status, reason, by, tell=observers.end, **more)
        tell(str(run.path), result)

    try:
        run.progress(phase="starting")
        e, method = config.experiment, Setup.of(config).method
        state = way.take_up()
        if state is None or state.round < e.rounds:  # else no round is done by this code
            code_copy.keep(run, config, state.round if state else 0)
        state = state or ServerState(first_state(e, method))
        observers.begin(config.flat() | {"output": str(run.path)})
        strategy = PersonalisedStrategy(e, config.execution, method, run, state, observers.round)
        yield strategy
        if strategy.is_done:
            end("completed")
        else:
            done = strategy.state.round
            end("stopped", f"the ServerApp ended after round {done} of {e.rounds}", "user")
    except RunStopped as stop:
        end("stopped", str(stop), stop.by, resumable=stop.by != SPENT)
        raise
    except RunNotRunningException:  # Flower's, and no Exception
        end("stopped", "stopped through Flower", "user")
        raise
    except RunDiverged as error:
        end("diverged", str(error), resumable=False, diverged_in=error.round)
        raise
    except Exception as error:
        reason = reason_of(error)
        if _is_bug(error):
            reason = with_traceback(reason, error, run.traceback_file)
        again = not isinstance(error, UserError) and not names_traceback(reason)
        end("failed", reason, resumable=again)
        raise
    except BaseException as error:  # a signal: the launcher writes the result
        observers.end({"status": "stopped", "error": str(error)})
        raise
    finally:
        run.close()


def reason_of(error: Exception) -> str:
    """One line for whoever reads the result."""
    text = (str(error).splitlines() or [""])[0]
    if _is_bug(error):
        return brief(error)
    if full := no_room(error):
        return full
    if isinstance(error, httpx.HTTPError):
        return f"the SuperLink does not answer ({text}); start it again, with resume=true"
    return text or type(error).__name__


def _is_bug(error: Exception) -> bool:
    """Whether code, ours or the user's, went wrong, and not what it works with."""
    return not is_ours(error) and not isinstance(error, RunFailed | OSError | httpx.HTTPError)


class LineLast(logging.Filter):
    """For Flower's log, once a run has failed: our line comes last, after Flower's exit code. The
    traceback is left out, unless it tells where code is to be mended."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._line = f"pfedlora failed: {reason_of(error)}"
        self._traceback = _is_bug(error)

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        if said.startswith("Exit Code: "):
            record.msg, record.args = f"{said}\n{self._line}", ()
        if self._traceback:
            return True
        record.exc_info = record.exc_text = None
        return not said.startswith("Traceback (most recent call last)")


def _tell(directory: str, result: Result, files: bool = False) -> None:
    """The run's result as a line of Flower's log, for whoever submitted it from elsewhere, after
    its files where they are asked for."""
    if files and directory:
        print(comparison_run.line_of(RunDirectory(Path(directory))), flush=True)
    print(RESULT_LINE + json.dumps({"directory": directory, "result": result}), flush=True)


class OwnLines(logging.Formatter):
    """Our own lines in Flower's log: what follows the first line of a text is indented, so that
    nobody's words begin as our lines do, which `pfedlora status` reads."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(super().format(record).splitlines())


def _log_to_stderr() -> None:
    """Our own log, from INFO, into Flower's."""
    package = logging.getLogger("pfedlora_flwr")
    package.setLevel(logging.INFO)
    handler = logging.StreamHandler()
    handler.setFormatter(OwnLines(LINE + "%(message)s"))
    package.handlers[:] = [handler]
