"""`pfedlora compare`: does the missing runs of a comparison, and then reports. Without a GPU the
runs go through warm workers of the local engine, one per core.

What is left to do is read from the runs' directories before every run. So a comparison that was
killed goes on where it was, a completed run (one with the same Experiment) is never repeated, and
an unfinished one is resumed. All methods of a scenario and seed share the partition and the sampled
clients, because these depend on the seed alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from rich.console import Console

from pfedlora_flwr import config
from pfedlora_flwr.commands.display import FAILED, stopped_code
from pfedlora_flwr.commands.run_queue import run_all, seconds_of
from pfedlora_flwr.comparison import estimate
from pfedlora_flwr.comparison.spec import Comparison
from pfedlora_flwr.comparison.work import STALE, Job, Shard, Work
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.local import shared_partition
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.errors import UserError, some
from pfedlora_flwr.files import check_writable, make_folder
from pfedlora_flwr.launch.checks import of_data, of_masks, of_method, preflight, slow_precision
from pfedlora_flwr.launch.execute import STOPPED
from pfedlora_flwr.launch.processes import SIGNALS, Stopped, stoppable
from pfedlora_flwr.launch.resources import ENGINES, check_engine, cores, fitting_engine, resources
from pfedlora_flwr.launch.simulation import claimed, stop_left_over
from pfedlora_flwr.ops.progress_text import duration
from pfedlora_flwr.report.words import count
from pfedlora_flwr.report.write import write_report
from pfedlora_flwr.runs.completed import Missing, Run, read_run
from pfedlora_flwr.runs.directory import RunDirectory
from pfedlora_flwr.runs.output import from_here
from pfedlora_flwr.runs.provenance import commits, git_commit, read_about, short
from pfedlora_flwr.training.device import find_device

_MOST = 256
_NAMED = 10
"""Runs that a line names."""
_WHOLE = Shard()
_AUTO = "auto"


def compare(
    part: Comparison,
    whole: Comparison,
    output: Path,
    out: Console,
    err: Console,
    *,
    dry_run: bool = False,
    engine: str = _AUTO,
    drop_models: bool = False,
    jobs: int | str = _AUTO,
    shard: Shard = _WHOLE,
    redo: Sequence[str] = (),
    report: bool = True,
    here: bool = False,
    options: Iterable[str] = (),
) -> int:
    """Runs what is missing of `part`, then reports on `whole`; the exit code: 0 when no run has
    failed. Raises UserError.

    engine: one of ENGINES; auto: local where no run trains on a GPU or a Ray cluster, else flower.
    drop_models: whether no completed run keeps its clients' models.
    jobs: runs at once, a number; auto: one for each core, or GPU, by the local engine, one by
    flower.
    shard: the runs of `part` that are done here; the report is written where the last of `whole` is
    done.
    redo: which runs that are there are done again (`Work.ask_again`).
    report: whether the report is written at the end. here: whether the local engine's runs are done
    in this process, one after the other. options: keys given beside the file; those of them and of
    the axes that no run uses are named."""
    asked = 1 if here else _number(str(jobs))
    work = Work(part, output.absolute(), shard)
    if engine not in (_AUTO, *ENGINES):
        raise UserError(f"--engine is {engine!r}; allowed: {', '.join((_AUTO, *ENGINES))}")
    examples = work.examples()
    engine = fitting_engine([job.config for job in examples]) if engine == _AUTO else engine
    for job in examples:
        check_engine(engine, job.config.execution, asked)
    Work(whole, work.output).check()  # the report is on all of it
    work.ask_again(redo)
    _preflight(work, dry_run, out)
    axes = [key for axis in part.axes for key in axis.keys]
    _name_unused(dict.fromkeys([*options, *axes]), examples, out)
    _warn_of_own_code(work, err)
    _warn_of_no_standalone(whole, err)
    if drop_models and (held := len(work.with_models())):
        told = f"warning: --drop-models removes the models of {held} completed runs, too"
        err.print(told, soft_wrap=True)
    at_once = asked or _at_once(work, engine)
    if dry_run:
        check_writable(work.output)
        _show_work(work, out, engine, drop_models, at_once)
        return 0
    with _claimed(output, shard), stoppable(*SIGNALS):
        whole.plan().write(work.output)
        _stop_left_over(work)
        _warn_of_other_code(work, err)
        try:
            speed = _speed(work, engine)
            stopped = run_all(work, speed, out, engine, drop_models, at_once, here=here)
            if stopped is None and report:
                _report(work, whole, out)
        except Stopped as stop:
            stopped = {
                "status": "stopped",
                "error": stop.number.name,
                "stopped_by": STOPPED[stop.number][1],
            }
        if stopped:
            again = any(name != STALE for name in redo)
            whole_again = ", and does those of --redo again from the first" if again else ""
            err.print(f"stopped; the same command continues{whole_again}")
            return stopped_code(stopped)
    for directory, reason in work.failed.items():
        err.print(f"failed: {directory.relative_to(work.output)}: {reason}")
    if work.failed:
        err.print(f"{len(work.failed)} runs failed; the same command retries them")
    return FAILED if work.failed else 0


def _number(jobs: str) -> int:
    """The runs at once that are asked for; 0 for auto. Raises UserError."""
    if jobs == _AUTO:
        return 0
    if jobs.isdecimal() and 1 <= int(jobs) <= _MOST:
        return int(jobs)
    raise UserError(f"--jobs is {jobs!r}; allowed: auto, or 1 to {_MOST}")


def _at_once(work: Work, engine: str) -> int:
    """The runs that go on at once by themselves: no more than are left."""
    if engine == "flower":
        return 1
    gpu = any(find_device(job.config.experiment.device).type == "cuda" for job in work.examples())
    most = torch.cuda.device_count() if gpu else cores()
    return max(1, min(most, _MOST, work.count().left))


def _report(work: Work, whole: Comparison, out: Console) -> None:
    """The report on the whole comparison, unless other shards will add to it."""
    left = 0
    if work.shard.of > 1:
        everything = Work(whole, work.output, failed=dict(work.failed))
        everything.failed |= everything.failed_before()  # on other hosts, too
        left = everything.count().left
    if left:
        later = f"pfedlora report {from_here(work.output)}"
        out.print(
            f"{left} runs are left, to other shards or parts; when those are done: {later}",
            soft_wrap=True,
        )
        return
    written = write_report([work.output], work.output / "report", out)
    out.print(f"the report is in {written.folder}", soft_wrap=True)


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
                FileLock(other, timeout=0).acquire().lock.release()
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


def _warn_of_other_code(work: Work, err: Console) -> None:
    """Says so where what is there already was made by other commits than this."""
    here = short(git_commit())
    others = [
        made
        for made in commits(
            read_about(RunDirectory(job.directory).config) for job in work.everything()
        )
        if made != here
    ]
    if others:
        by = ", ".join(made or "an unknown commit" for made in others)
        told = (
            f"warning: of these runs some were made by {by}, and this is"
            f" {here or 'an unknown commit'}: they may not compute the same"
        )
        err.print(told, soft_wrap=True)


def _warn_of_no_standalone(whole: Comparison, err: Console) -> None:
    """Says so where tables will say "= Standalone", and no run says what that is."""
    cells = whole.cells()
    if any(not cell.candidates for cell in cells) and not any(
        cell.candidates for cell in cells if cell.method == "standalone"
    ):
        told = (
            "warning: of these methods some are Standalone by construction, and Standalone itself"
            " is not run: name it among the methods, with sharing=mean"
        )
        err.print(told, soft_wrap=True)


def _warn_of_own_code(work: Work, err: Console) -> None:
    """Names the runs that another code of the user's did than is here, and that stay."""
    by_files: dict[str, list[str]] = {}
    for directory, found in work.other_code().items():
        if directory not in work.redo:
            name = str(directory.relative_to(work.output))
            by_files.setdefault(str(found), []).append(name)
    for files, runs in by_files.items():
        told = (
            f"warning: your code has changed ({files}) since {len(runs)} runs that stay as they"
            f" are: {some(runs, _NAMED)}; --redo {STALE} does them again"
        )
        err.print(told, soft_wrap=True)


def _preflight(work: Work, dry_run: bool, out: Console) -> None:
    """Says once what is to know of the data. Raises UserError, with the scenario's name, where a
    run could not start. A dry run downloads nothing: it leaves such out."""
    examples = work.examples()
    if not examples:
        raise UserError(
            "nothing to run: everything requested is Standalone by construction, which"
            " sharing=mean runs"
        )
    said = set[str]()
    for job in examples:
        e, path = job.config.experiment, job.config.execution.data_path
        if dry_run and datasets.needs_download(e.dataset, Reading.of(e, path)):
            continue
        try:
            preflight(job.config)
            masks = of_masks(job.config)
        except UserError as error:
            raise type(error)(f"{job.title}: {error}") from error.__cause__
        data = shared_partition(e, job.config.execution.data_path)
        of_both = (*of_method(job.config), *of_data(e, *data))
        for line in (*slow_precision(job.config), *of_both, *masks):
            if line not in said:
                out.print(line, soft_wrap=True)
            said.add(line)


def _name_unused(options: Iterable[str], examples: Sequence[Job], out: Console) -> None:
    """Names the options, and keys of axes, that change nothing in any of these runs."""
    for name in options:
        told = [config.unused([name], job.config) for job in examples]
        if all(told):
            line = told[0][0] if told.count(told[0]) == len(told) else f"{name} is not used"
            out.print(f"warning: {line}", soft_wrap=True)


def _speed(work: Work, engine: str) -> estimate.Speed:
    if engine == "flower":
        speed = estimate.Speed(resources(work.examples()[0].config).at_once)
    else:
        speed = estimate.Speed(1, estimate.WARM_START)
    for run in work.completed(any_rounds=True):
        speed.learn(run.config, run.result["seconds"]["total"])
    return speed


def _show_work(work: Work, out: Console, engine: str, drop_models: bool, at_once: int) -> None:
    """What would run, how long it may take and the disk it will need."""
    speed, jobs = _speed(work, engine), work.jobs()
    runs = work.count()
    for job in jobs:
        more = f" (and {job.repeats - 1} more with the values chosen)" if job.repeats > 1 else ""
        seconds, states = speed.seconds(job.config), estimate.state_bytes(job.config)
        took = f"about {duration(seconds)}, {count(estimate.model_bytes(job.config))}B of models"
        took += f", {count(states)}B of states" if states else ""
        out.print(f"{job.title}{more}: {_state(job)}; {took}", soft_wrap=True)
    disk = estimate.disk(
        (job.config for job in jobs for _ in range(job.repeats)), kept=not drop_models
    )
    diverged = f" ({runs.diverged} diverged)" if runs.diverged else ""
    basis = "a guess: no run has been timed yet" if speed.guessed else "from the runs that are done"
    out.print(
        f"{runs.done} of {runs.of} runs are done{diverged}, {runs.left} are left: about"
        f" {duration(seconds_of(jobs, speed) / at_once)} ({basis}), {count(disk)}B of disk in"
        f" {work.output}",
        soft_wrap=True,
    )


def _state(job: Job) -> str:
    run = read_run(job.directory, job.config.experiment.rounds)
    return run.reason if isinstance(run, Missing) else "completed"
