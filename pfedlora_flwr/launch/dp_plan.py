"""What differential privacy will cost a run, in lines, before it starts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from pfedlora_flwr.data.local import task_of
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.federation.dp import check_clip, largest_part, resolution, size_of
from pfedlora_flwr.federation.server_state import first_state
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.lora_factors import A, B
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.runs.accountant import planned
from pfedlora_flwr.runs.budget import Budget
from pfedlora_flwr.runs.directory import RunDirectory


def plan(config: RunConfig, run: RunDirectory) -> Iterable[str]:
    """ε of the whole run, and its noise beside the clip. Raises UserError for a clip that rounding
    under masks would use up, or without dp-accounting."""
    e = config.experiment
    if not e.dp_enabled:
        return
    assert e.dp_clip is not None
    method = _method(e, config)
    part = largest_part(e, method)
    check_clip(e, part)
    resumed = config.execution.resume
    budget = Budget(run.dp_file if resumed else None, e)
    more = planned(e, run.last_round() + 1 if resumed else 1)
    z, size, most = budget.noise, size_of(part), budget.most_with(more)
    found = budget.epsilon(most)
    noise = z * e.dp_clip * math.sqrt(size) / e.sampled
    which = "past and planned" if resumed else "planned"
    yield (
        f"dp: ε = {found:.4g} at δ = {e.dp_delta:g} for {most} {which} participations of a client,"
        f" by z = {z:.4g}"
    )
    yield (
        f"dp: the noise of a round's mean has the norm {noise:.3g}, the clip is {e.dp_clip:g}"
        f" ({size:,} numbers, {e.sampled} clients a round); the two are equal with"
        f" {max(1, math.ceil(z * math.sqrt(size))):,} clients a round"
    )
    if (finest := resolution(part)) >= e.dp_clip:
        yield (
            f"warning: dp.clip is {e.dp_clip:g}, and the shared tensors are rounded by up to"
            f" {finest:.2g}: most updates will be rounding"
        )
    names = list(first_state(e, method))
    if all(any(factor in name for name in names) for factor in (A, B)):
        yield (
            f"dp: {e.method} shares both matrices of LoRA, and their noise multiplies; ffa_lora"
            " shares one"
        )
    if e.dp_trained_down and getattr(e.options, "adapter_down", "fixed") in (None, "trained"):
        options = dataclasses.replace(e.options, adapter_down="fixed")
        other = e.replace(options=options)
        fixed = size_of(largest_part(other, _method(other, config)))
        if fixed < size:
            yield (
                f"dp: adapter.down=trained shares {size:,} numbers, fixed {fixed:,}: the noise is"
                f" {math.sqrt(size / fixed):.2g} times as large, and that of the two matrices"
                " multiplies"
            )


def _method(e: Experiment, config: RunConfig) -> Method:
    return registry.make(e, task_of(e, config.execution.data_path))
