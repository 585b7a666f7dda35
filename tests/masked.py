"""What secure aggregation must hide: a round's updates as they are before they are masked, and
pieces of bytes to search for."""

from __future__ import annotations

import numpy as np
from flwr.common.secure_aggregation.quantization import quantize

from pfedlora_flwr.features.masks.keys import LEVELS
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.rng import derive
from tests.plain import Plain


def pieces(whole: bytes) -> list[bytes]:
    """Three of 32 bytes; none of what is too short to be known by value."""
    return [
        whole[at : at + 32]
        for at in (0, len(whole) // 64 * 32, len(whole) - 32)
        if len(whole) >= 64
    ]


def levels(plain: Plain, first: Tensors) -> list[bytes]:
    """[w, w·Δ] of each client of the last round as it is before it is masked: the rounding is
    seeded. first: what it began with."""
    found, drawn = [], np.random.get_state()
    for client, upload in plain.uploads.items():
        np.random.seed(derive(plain.experiment.seed, "rounding", client, plain.round) % 2**32)
        weight = round(upload.samples / plain.experiment.secagg.max_samples * LEVELS)
        parts = [
            np.subtract(t.numpy(), first[n].numpy(), dtype=np.float64).ravel()
            for n, t in upload.tensors.items()
        ]
        (whole,) = quantize(
            [np.concatenate(parts) * (weight / LEVELS)], plain.experiment.secagg.clip, LEVELS
        )
        found.append(whole.astype("<u4").tobytes())
    np.random.set_state(drawn)
    return found


def secrets_of(plain: Plain, first: Tensors) -> list[bytes]:
    """Pieces of each client's update of the last round, in every form in which it might be
    found."""
    needles = [piece for whole in levels(plain, first) for piece in pieces(whole)]
    for upload in plain.uploads.values():
        for name, tensor in upload.tensors.items():
            delta = tensor.double() - first[name].double()
            for values in (
                tensor,
                delta,
                delta.float(),
                delta * upload.samples / plain.experiment.secagg.max_samples,
            ):
                needles += pieces(values.contiguous().numpy().tobytes())
    return needles
