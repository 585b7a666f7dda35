"""What secure aggregation needs of a run's keys and of its clients' samples, in lines, before it
starts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.data.partition import Partition
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.features.masks.keys import LEVELS
from pfedlora_flwr.runs.begin import Begin

_MESSAGE = 10.0
"""Seconds that a message to a real node takes at least, about."""
_COARSE = 10
"""`secagg.max-samples` in sizes of the largest client, above which the rounding is told."""


def plan(begin: Begin) -> Iterable[str]:
    """All that is to be said of a run whose clients' data is here."""
    config = begin.wanted
    if config.experiment.secagg.enabled:
        yield from of_keys(config)
        yield from of_sizes(config, Setup.of(config).partition)


def of_keys(config: RunConfig) -> Iterable[str]:
    """Keys with which rounds may fail, a line each, as far as they are known without the data."""
    e, x = config.experiment, config.execution
    if not e.secagg.enabled:
        return
    # imports Flower's protocol, which plain runs do not need
    from pfedlora_flwr.federation.flower_compat import Key
    from pfedlora_flwr.federation.secure.guard import terms
    from pfedlora_flwr.federation.secure.stages import UNTIL

    agreed = terms(e, x, e.sampled)
    needed, shares = int(agreed[Key.THRESHOLD]), int(agreed[Key.SHARE_NUMBER])
    if x.enough_of(e.sampled) * shares < needed * e.sampled:
        of = "clients" if shares == e.sampled else "holders of a client's shares"
        yield (
            f"warning: min-success is {x.min_success:g}; secagg.threshold needs {needed} of"
            f" {shares} {of}"
        )
    share = min(end - begin for begin, end in pairwise([0.0, *UNTIL.values()]))
    if share * x.round_timeout < _MESSAGE:
        yield (
            f"warning: round-timeout is {x.round_timeout:g}, of which a stage of secure aggregation"
            f" has {share * x.round_timeout:.3g} s; a message to a real node takes about"
            f" {_MESSAGE:g} s"
        )


def of_sizes(config: RunConfig, partition: Partition) -> Iterable[str]:
    """How coarse the rounding of a round's mean is, if it is, and which client would refuse every
    round. Raises UserError for such a client where none may be missing."""
    e = config.experiment
    if not e.secagg.enabled or e.weighs_alike:
        return
    sizes, most = [len(split.train) for split in partition.clients], e.secagg.max_samples
    if most < (largest := max(sizes)):
        whose = f"{largest}, the training samples of client {sizes.index(largest)}"
        if config.execution.min_success == 1:
            raise UserError(f"secagg.max-samples is {most}; allowed: at least {whose}")
        yield (
            f"warning: secagg.max-samples is {most}, less than {whose}: such clients refuse every"
            " round"
        )
    if e.adds:
        yield (
            f"secagg: a number in a client's sums is rounded by up to {2 * most / LEVELS:.2g}, by"
            f" secagg.max-samples; the smallest client has {min(sizes)} samples, each of length 1"
        )
    elif most > _COARSE * largest:
        weights = sum(sorted(sizes)[: e.sampled]) / most  # the least of a round
        error = 2 * e.secagg.clip * e.sampled / LEVELS / weights
        yield (
            f"warning: secagg.max-samples is {most}, and the largest client has {largest} training"
            f" samples: a round's mean is rounded by up to {error:.2g}"
        )
