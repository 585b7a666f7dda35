"""What differential privacy will cost a run, in lines, before it starts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from pfedlora_flwr.data.local import task_of
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.dp import rounding
from pfedlora_flwr.federation.server_state import first_state
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.runs.accountant import planned
from pfedlora_flwr.runs.budget import Budget
from pfedlora_flwr.runs.layout import RunFiles


def plan(config: RunConfig, run: RunFiles) -> Iterable[str]:
    """ε of the whole run, and its noise beside the clip. Raises UserError for a clip that rounding
    under masks would use up, or without dp-accounting."""
    e = config.experiment
    if not e.dp_enabled:
        return
    assert e.dp_clip is not None
    state = _state(e, config)
    if e.dp_clip <= (least := rounding(e, state)):
        raise UserError(
            f"dp.clip is {e.dp_clip:g}; allowed with secagg.enabled: above {least:.2g}, which"
            " rounding under masks may add to an update; lower secagg.clip"
        )
    budget = Budget(run.dp_file, e)
    z, size, most = budget.noise, _size(state), max(planned(e).values())
    found = budget.epsilon(most)
    noise = z * e.dp_clip * math.sqrt(size) / e.sampled
    yield (
        f"dp: ε = {found:.4g} at δ = {e.dp_delta:g} for {most} planned participations of a client,"
        f" by z = {z:.4g}"
    )
    yield (
        f"dp: the noise of a round's mean has the norm {noise:.3g}, the clip is {e.dp_clip:g}"
        f" ({size:,} numbers, {e.sampled} clients a round); the two are equal with"
        f" {max(1, math.ceil(z * math.sqrt(size))):,} clients a round"
    )
    if e.dp_trained_down and getattr(e.options, "adapter_down", "fixed") in (None, "trained"):
        options = dataclasses.replace(e.options, adapter_down="fixed")
        fixed = _size(_state(e.replace(options=options), config))
        if fixed < size:
            yield (
                f"dp: adapter.down=trained shares {size:,} numbers, fixed {fixed:,}: the noise is"
                f" {math.sqrt(size / fixed):.2g} times as large, and that of the two matrices"
                " multiplies"
            )


def _state(e: Experiment, config: RunConfig) -> Tensors:
    return first_state(e, registry.make(e, task_of(e, config.execution.data_path)))


def _size(state: Tensors) -> int:
    return sum(tensor.numel() for tensor in state.values())
