"""A comparison on real nodes before its first run: whether it can be there, and what it will
take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pfedlora_flwr.comparison import estimate
from pfedlora_flwr.comparison.work import Job
from pfedlora_flwr.errors import UserError, counted
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.features import plans
from pfedlora_flwr.launch.superlink import find_connection
from pfedlora_flwr.methods.registry import POOLED
from pfedlora_flwr.ops.progress_text import duration, megabytes

NODES = "nodes"
"""What stands for an engine where a SuperLink's nodes do the runs."""


def check_network(
    superlink: str, runs: Sequence[RunConfig], engine: bool, jobs: int, shard: str
) -> None:
    """Raises UserError where such runs cannot be on nodes. engine: whether one is asked for."""
    find_connection(superlink)
    asked = {"engine": engine, "jobs": jobs, "shard": shard}
    if given := [name for name, value in asked.items() if value]:
        raise UserError(
            f"{given[0]} is for simulations: with superlink={superlink} the nodes do one run after"
            " the other"
        )
    for run in runs:
        run.execution.check_lanes()
    if any(run.experiment.method == POOLED for run in runs):
        raise UserError(
            f"method {POOLED} trains on the rows of all sites in one place, and real nodes keep"
            " theirs; leave it out of the methods"
        )


def plan_of(superlink: str, jobs: Sequence[Job], speed: estimate.Speed) -> Iterator[str]:
    """How long the runs that are left take, what a site sends and gets, what all of them spend,
    and what the seeds change."""
    runs = [job.config for job in jobs for _ in range(job.repeats)]
    if not runs:
        return
    seconds = sum(speed.seconds(run) for run in runs)
    basis = "training at the sites comes on top" if speed.guessed else "by the runs that are done"
    told = f"{counted(len(runs), 'run')} on {superlink}, one after the other"
    yield f"{told}: about {duration(seconds)} ({basis})"
    up = down = 0.0
    for e, (sent, got) in ((run.experiment, estimate.traffic(run)) for run in runs):
        visits = e.rounds * e.sampled / e.clients
        up, down = up + visits * sent, down + visits * got
    yield f"a site sends at most {megabytes(up)} in all of them, and gets {megabytes(down)}"
    yield from plans.of_all([run.experiment for run in runs])
    yield (
        "a site steps out at its runs-cap or epsilon-cap; each site divides its own rows into"
        " training, validation and test part, anew for each seed"
    )
