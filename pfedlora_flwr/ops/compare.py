"""Does the missing runs of a comparison. Without a GPU the runs go through warm workers of the
local engine, one per core.

What is left to do is read from the runs' directories before every run. So a comparison that was
killed goes on where it was, a completed run (one with the same Experiment) is never repeated, and
an unfinished one is resumed. All methods of a scenario and seed share the partition and the sampled
clients, because these depend on the seed alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from pfedlora_flwr import config
from pfedlora_flwr.comparison import estimate
from pfedlora_flwr.comparison.plan import Plan
from pfedlora_flwr.comparison.spec import Comparison
from pfedlora_flwr.comparison.work import STALE, Job, Shard, Work
from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.errors import UserError, some
from pfedlora_flwr.files import check_writable, make_folder
from pfedlora_flwr.launch.checks import Say, Start, nothing, of_nodes, of_scenario
from pfedlora_flwr.launch.execute import STOPPED
from pfedlora_flwr.launch.network import Network
from pfedlora_flwr.launch.processes import SIGNALS, Stopped, stoppable
from pfedlora_flwr.launch.resources import ENGINES, check_engine, cores, fitting_engine, resources
from pfedlora_flwr.launch.simulation import claimed, stop_left_over
from pfedlora_flwr.ops.nodes import NODES, check_network, plan_of
from pfedlora_flwr.ops.progress_text import duration
from pfedlora_flwr.ops.run_queue import Watch, run_all, seconds_of
from pfedlora_flwr.report.words import count
from pfedlora_flwr.runs.completed import Missing, Run, read_run
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.provenance import commits, git_commit, read_about, short
from pfedlora_flwr.runs.rows import Result
from pfedlora_flwr.training.device import find_device

_MOST = 256
AUTO = "auto"


@dataclass(frozen=True)
class Compared:
    """What came of it. stopped: the result of the run in which it was stopped, if it was."""

    work: Work
    stopped: Result | None = None

    def left(self, whole: Comparison) -> int:
        """The runs of the whole comparison that are left, to other shards or parts."""
        if self.work.shard.of == 1:
            return 0
        everything = Work(whole, self.work.output, failed=dict(self.work.failed))
        everything.failed |= everything.failed_before()  # on other hosts, too
        return everything.count().left


def compare(
    whole: Comparison,
    output: Path,
    *,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    only: Sequence[str] = (),
    dry_run: bool = False,
    drop_models: bool = False,
    redo: Sequence[str] = (),
    options: Iterable[str] = (),
    engine: str = AUTO,
    jobs: int | str = AUTO,
    shard: str = "",
    here: bool = False,
    superlink: str = "",
    say: Say = nothing,
    warn: Say = nothing,
    ended: Say | None = None,
    watch: Watch = nothing,
) -> Compared:
    """Does the missing runs of a comparison, of all or of these methods, seeds and values. Raises
    UserError.

    drop_models: whether no completed run keeps its clients' models. redo: which runs that are there
    are done again (`Work.ask_again`). options: keys given beside the file; those of them and of the
    axes that no run uses are named.
    engine: one of ENGINES; auto: local where no run trains on a GPU or a Ray cluster, else flower.
    jobs: runs at once, a number; auto: one for each core, or GPU, by the local engine, one by
    flower. shard: I/N; only these runs are done here. here: whether the local engine's runs are
    done in this process, one after the other. superlink: a connection in Flower's config.toml, on
    whose nodes the runs are done. say, warn: take lines. ended: takes that of each
    run that has ended; None: `say` does. watch: is told how the runs stand."""
    part = whole.select(methods, seeds, only)
    asked = 1 if here else _number(str(jobs))
    work = Work(part, output.absolute(), Shard.parse(shard))
    if engine not in (AUTO, *ENGINES):
        raise UserError(f"engine is {engine!r}; allowed: {', '.join((AUTO, *ENGINES))}")
    examples = work.examples()
    if superlink:
        check_network(superlink, [job.config for job in examples], engine != AUTO, asked, shard)
        engine, asked = NODES, 1
    else:
        engine = fitting_engine([job.config for job in examples]) if engine == AUTO else engine
        for job in examples:
            check_engine(engine, job.config.execution, asked)
    Work(whole, work.output).check()  # a report is on all of it
    work.ask_again(redo)
    said = _preflight(work, engine, dry_run, say)
    plan = [*plan_of(superlink, work.jobs(), _speed(work, engine))] if superlink else []
    for line in plan:
        say(line)
    said += plan[-1:]  # the others are of what is left now
    axes = [key for axis in part.axes for key in axis.keys]
    _name_unused(dict.fromkeys([*options, *axes]), examples, say)
    _warn_of_own_code(work, warn)
    _warn_of_no_standalone(whole, warn)
    if drop_models and (held := len(work.with_models())):
        warn(f"warning: drop-models=true removes the models of {held} completed runs, too")
    at_once = asked or _at_once(work, engine)
    if dry_run:
        check_writable(work.output)
        if not superlink:
            _show_work(work, say, engine, drop_models, at_once)
        return Compared(work)
    with _claimed(output, work.shard), stoppable(*SIGNALS):
        try:
            if before := Plan.read(work.output):
                said = [*before.said, *said]
            replace(whole.plan(), said=tuple(dict.fromkeys(said))).write(work.output)
            _stop_left_over(work)
            _warn_of_other_code(work, warn)
            stopped = run_all(
                work,
                _speed(work, engine),
                engine,
                drop_models=drop_models,
                at_once=at_once,
                here=here,
                say=say,
                ended=ended or say,
                watch=watch,
                network=Network(superlink, work.output) if superlink else None,
            )
        except Stopped as stop:
            by = STOPPED[stop.number][1]
            stopped = {"status": "stopped", "error": stop.number.name, "stopped_by": by}
    return Compared(work, stopped)


def _number(jobs: str) -> int:
    """The runs at once that are asked for; 0 for auto. Raises UserError."""
    if jobs == AUTO:
        return 0
    if jobs.isdecimal() and 1 <= int(jobs) <= _MOST:
        return int(jobs)
    raise UserError(f"jobs is {jobs!r}; allowed: auto, or 1 to {_MOST}")


def _at_once(work: Work, engine: str) -> int:
    """The runs that go on at once by themselves: no more than are left."""
    if engine == "flower":
        return 1
    gpu = any(find_device(job.config.experiment.device).type == "cuda" for job in work.examples())
    most = torch.cuda.device_count() if gpu else cores()
    return max(1, min(most, _MOST, work.count().left))


@contextmanager
def _claimed(output: Path, shard: Shard) -> Iterator[None]:
    """Holds the shard of the comparison's directory, made if it is not there. Raises UserError when
    another `compare` has it, or has the directory divided otherwise."""
    make_folder(output)
    name = ".lock" if shard.of == 1 else f".lock-{{}}-of-{shard.of}"
    ours = [output.absolute() / name.format(number + 1) for number in range(shard.of)]
    try:
        with FileLock(ours[shard.number - 1], timeout=0):
            for other in set(output.absolute().glob(".lock*")) - set(ours):
                with FileLock(other, timeout=0):
                    pass  # no other division of the directory goes on
            yield
    except Timeout:
        raise UserError(
            f"{output} is in use by a running compare; wait for it, or give another output folder"
        ) from None


def _stop_left_over(work: Work) -> None:
    """A compare that was killed leaves its runs going: this ends them. One that came to its end by
    itself is tidied up as any other."""
    for job in work.everything():
        directory = RunDirectory(job.directory)
        if directory.launch_file.exists():
            with claimed(job.directory):
                stop_left_over(job.directory)
                if isinstance(read_run(job.directory), Run):
                    directory.trim()
                    work.drop_rejected()


def _warn_of_other_code(work: Work, warn: Say) -> None:
    """Says so where what is there already was made by other commits than this."""
    here = short(git_commit())
    about = (read_about(RunDirectory(job.directory).config) for job in work.everything())
    if others := [made for made in commits(about) if made != here]:
        by = ", ".join(made or "an unknown commit" for made in others)
        warn(
            f"warning: of these runs some were made by {by}, and this is"
            f" {here or 'an unknown commit'}: they may not compute the same"
        )


def _warn_of_no_standalone(whole: Comparison, warn: Say) -> None:
    """Says so where tables will say "= Standalone", and no run says what that is."""
    cells = whole.cells()
    if any(not cell.candidates for cell in cells) and not any(
        cell.candidates for cell in cells if cell.method == "standalone"
    ):
        warn(
            "warning: of these methods some are Standalone by construction, and Standalone itself"
            " is not run: name it among the methods, with sharing=mean"
        )


def _warn_of_own_code(work: Work, warn: Say) -> None:
    """Names the runs that another code of the user's did than is here, and that stay."""
    by_files: dict[str, list[str]] = {}
    for directory, found in work.other_code().items():
        if directory not in work.redo:
            by_files.setdefault(str(found), []).append(str(directory.relative_to(work.output)))
    for files, runs in by_files.items():
        warn(
            f"warning: your code has changed ({files}) since {len(runs)} runs that stay as they"
            f" are: {some(runs)}; redo={STALE} does them again"
        )


def _preflight(work: Work, engine: str, dry_run: bool, say: Say) -> list[str]:
    """Says once what `run` would say of the runs, and returns it. Raises UserError, with the
    scenario's name, where a run could not start. A dry run downloads nothing: it leaves such out.
    """
    examples = work.examples()
    if not examples:
        raise UserError(
            "nothing to run: everything requested is Standalone by construction, which"
            " sharing=mean runs"
        )
    said: dict[str, None] = {}
    for job in examples:
        if dry_run and engine != NODES and Setup.of(job.config).needs_download:
            continue
        try:
            start = Start(job.config, engine)
            lines = [*(of_nodes(start) if engine == NODES else of_scenario(start))]
        except UserError as error:
            raise type(error)(f"{job.title}: {error}") from error.__cause__
        for line in lines:
            if line not in said:
                say(line)
            said[line] = None
    return [line.removeprefix("warning: ") for line in said]


def _name_unused(options: Iterable[str], examples: Sequence[Job], say: Say) -> None:
    """Names the options, and keys of axes, that change nothing in any of these runs."""
    for name in options:
        told = [config.unused([name], job.config) for job in examples]
        if all(told):
            line = told[0][0] if told.count(told[0]) == len(told) else f"{name} is not used"
            say(f"warning: {line}")


def _speed(work: Work, engine: str) -> estimate.Speed:
    if engine == NODES:
        speed = estimate.of_nodes()
    elif engine == "flower":
        speed = estimate.Speed(resources(work.examples()[0].config).at_once)
    else:
        speed = estimate.Speed(1, estimate.WARM_START)
    for run in work.completed(any_rounds=True):
        speed.learn(run.config, run.result["seconds"]["total"])
    return speed


def _show_work(work: Work, say: Say, engine: str, drop_models: bool, at_once: int) -> None:
    """What would run, how long it may take and the disk it will need."""
    speed, jobs = _speed(work, engine), work.jobs()
    runs, lines = work.count(), dict[str, list[str]]()
    for job in jobs:
        c, run = job.config, read_run(job.directory, job.config.experiment.rounds)
        state = run.reason if isinstance(run, Missing) else "completed"
        more = f" (and {job.repeats - 1} more with the values chosen)" if job.repeats > 1 else ""
        took = f"about {duration(speed.seconds(c))}, {count(estimate.model_bytes(c))}B of models"
        took += f", {count(states)}B of states" if (states := estimate.state_bytes(c)) else ""
        seed, text = str(c.experiment.seed), f"{job.title}{more}: {state}; {took}"
        lines.setdefault(text.replace(f"seed {seed}", "seed {}", 1), []).append(seed)
    for text, seeds in lines.items():
        say(text.replace("seed {}", f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}", 1))
    every = [job.config for job in jobs for _ in range(job.repeats)]
    disk = estimate.disk(every, kept=not drop_models)
    diverged = f" ({runs.diverged} diverged)" if runs.diverged else ""
    basis = "a guess: no run has been timed yet" if speed.guessed else "from the runs that are done"
    say(
        f"{runs.done} of {runs.of} runs are done{diverged}, {runs.left} are left: about"
        f" {duration(seconds_of(jobs, speed) / at_once)} ({basis}), {count(disk)}B of disk in"
        f" {work.output}"
    )
