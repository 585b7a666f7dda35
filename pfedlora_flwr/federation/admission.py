"""What the server refuses, and why: an update is admitted only when everything about it is what was asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pfedlora_flwr.federation.checkpoint import Figures
from pfedlora_flwr.federation.wire import Reply, decode
from pfedlora_flwr.methods.method import Method, Refused, Tensors, Upload

LARGEST_COUNT = 10**9
"""Samples a client may claim to have."""


@dataclass(frozen=True)
class Turn:
    """A client's admitted turn: its upload, its model's hash, its figures and what it says of itself."""

    upload: Upload
    model_sha256: str
    figures: Figures | None
    metrics: Mapping[str, Any]
    wire_bytes: int


def admit(reply: Reply, method: Method, state: Tensors, client: int, round: int) -> Turn:
    """The turn in a reply to `round`'s instruction. Raises Refused with the reason."""
    metrics = reply.metrics
    if metrics.get("round") != round or metrics.get("client") != client:
        raise Refused(
            f"it answers round {metrics.get('round')!r} as client {metrics.get('client')!r}, asked was round {round} of client {client}"
        )
    samples = _count(reply.samples, "its sample count n_k", low=1)
    largest = method.largest_upload(state)
    if sum(map(len, reply.arrays)) > largest + 4096 * (len(reply.arrays) + 1):
        raise Refused(f"its arrays have {sum(map(len, reply.arrays))} bytes, at most {largest} are expected")
    try:
        names = json.loads(metrics["names"])
        arrays = [torch.from_numpy(decode(blob, largest)) for blob in reply.arrays]
        tensors = dict(zip(names, arrays, strict=True))
    except (KeyError, ValueError, TypeError, EOFError, OSError, SyntaxError) as error:
        raise Refused(f"its arrays cannot be decoded ({type(error).__name__}: {str(error)[:200]})") from None
    if len(tensors) != len(names):
        raise Refused("two of its arrays have the same name")
    upload = Upload(tensors, samples)
    method.check(upload, state, client)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise Refused(f"{name} has values that are not finite")
    if not isinstance(metrics.get("loss"), float) or not math.isfinite(metrics["loss"]):
        raise Refused(f"its loss is {metrics.get('loss')!r}, not a finite number")
    sha256 = metrics.get("model-sha256")
    if not isinstance(sha256, str) or len(sha256) != 64:
        raise Refused(f"its model hash is {sha256!r}")
    return Turn(upload, sha256, read_figures(metrics) if "test" in metrics else None, metrics, reply.wire_bytes)


def read_figures(metrics: Mapping[str, Any]) -> Figures:
    """The evaluation counts in a client's metrics. Raises Refused for impossible ones."""
    counts = []
    for part in ("validation", "test"):
        whole = _count(metrics.get(part), f"its {part} sample count")
        counts += [_count(metrics.get(f"{part}-correct"), f"its correct {part} predictions", high=whole), whole]
    return Figures(*counts)


def _count(value: Any, what: str, low: int = 0, high: int = LARGEST_COUNT) -> int:
    if type(value) is not int or not low <= value <= high:
        raise Refused(f"{what} is {value!r}; allowed: an integer from {low} to {high}")
    return value
