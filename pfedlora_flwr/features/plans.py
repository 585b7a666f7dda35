"""What the features say of a run before it starts, a line each, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.features.dp import plan as noise
from pfedlora_flwr.features.held_out import rules as held_out
from pfedlora_flwr.features.masks import plan as masks
from pfedlora_flwr.features.membership.without import Without
from pfedlora_flwr.runs.begin import Begin

without, beside = Without.of, held_out.beside
PLANS: tuple[Callable[[Begin], Iterable[str]], ...] = (masks.plan, noise.plan)


def of_run(begin: Begin) -> Iterable[str]:
    """Of a run whose data is here. Raises UserError where it could not go on."""
    return (line for plan in PLANS for line in plan(begin))


def of_all(runs: Sequence[Experiment]) -> Iterable[str]:
    """Of runs on the same real nodes together."""
    return noise.of_all(runs)


def of_nodes(config: RunConfig) -> Iterable[str]:
    """Of a run on real nodes, whose data is not here."""
    return masks.of_keys(config)
