"""A frozen encoder's outputs on a client's samples: computed once, and cached under everything that
determines them, to the same bits."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import nn

from pfedlora_flwr.data.local import LocalData
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.models.encoded import kept
from pfedlora_flwr.models.pretrained import frozen_encoder, with_outputs
from pfedlora_flwr.training.flops import count_operations

PHASE = "features"
"""Of a visit's operations: those of the encoder, once a client."""
_COUNTED = WeakKeyDictionary[nn.Module, dict[tuple[object, ...], int]]()
"""One sample's, by encoder and shape: all clients of a process share the encoder."""


def with_outputs_kept(
    model: nn.Module, data: LocalData, e: Experiment, *, train: bool = True, evaluated: bool = True
) -> LocalData:
    """The data with the outputs of the model's encoder, where that is wholly frozen: from the
    cache, or computed and kept there. As it is if there is no such encoder, or where images are
    augmented.

    train, evaluated: which parts are used. Raises UserError if the cache cannot be written.
    """
    encoder = frozen_encoder(model)
    if encoder is None or e.augment:
        return data
    parts = {
        part: with_outputs(samples, encoder, kept(encoder, samples, e.precision))
        for part, wants in {"train": train, "validation": evaluated, "test": evaluated}.items()
        if wants and len(samples := getattr(data, part))
    }
    return replace(data, **parts)


def operations(model: nn.Module, data: LocalData, e: Experiment) -> dict[str, int]:
    """What the outputs of the training part cost, as a phase of the visit in which a client first
    needs them, whether they are in the cache or not; empty if there are none to keep."""
    encoder = frozen_encoder(model)
    if encoder is None or e.augment:
        return {}
    one = data.train.batch(slice(0, 1))
    counts = _COUNTED.setdefault(encoder.module, {})
    of = encoder.side, one.shape, one.dtype, one.device
    if of not in counts:
        with torch.no_grad(), count_operations() as counted:
            encoder.encode(one)
        counts[of] = counted.forward
    return {PHASE: counts[of] * len(data.train)}
