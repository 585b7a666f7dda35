"""What the server refuses, and why: an update is admitted only when everything about it is what was asked for.

The order matters: sizes first, before anything is decoded; then the message, the arrays and the numbers; then, when a round's updates
are all there, each against the others.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pfedlora_flwr.federation.wire import Reply, decode
from pfedlora_flwr.methods.method import Method, Refused, Tensors, Upload
from pfedlora_flwr.runs.checkpoint import Figures

LARGEST_COUNT = 10**9
"""Samples that an evaluation may claim to have seen."""
_LARGEST_LOSS = 1e30
_LARGEST_METRICS = 2**20
_WORDS = 200


@dataclass(frozen=True)
class Report:
    """What a client says of its turn. losses: the mean of each phase; seconds, flops: by part of the turn; second: shares in [0, 1]."""

    model: str
    worker: str
    loss: float
    losses: dict[str, float]
    seconds: dict[str, float]
    flops: dict[str, int]
    second: dict[str, float]
    lost: bool


@dataclass(frozen=True)
class Turn:
    """A client's admitted turn: its upload, its model's hash, its figures if it evaluated, and what it says of itself."""

    upload: Upload
    model_sha256: str
    figures: Figures | None
    report: Report
    wire_bytes: int


def admit(reply: Reply, method: Method, state: Tensors, client: int, round: int, most_samples: int, evaluated: bool = True) -> Turn:
    """The turn in a reply to `round`'s instruction, with its figures where it was told to evaluate. Raises Refused with the reason."""
    largest, size = method.largest_upload(state), sum(map(len, reply.arrays))
    if size > largest + 4096 * (len(reply.arrays) + 1):
        raise Refused(f"its arrays have {size} bytes, at most {largest} are expected")
    if reply.wire_bytes - size > _LARGEST_METRICS + 4096 * len(reply.arrays):
        raise Refused(f"its message has {reply.wire_bytes} bytes, of which {size} are arrays")
    metrics = reply.metrics
    if metrics.get("round") != round or metrics.get("client") != client:
        told = f"round {_short(metrics.get('round'))} as client {_short(metrics.get('client'))}"
        raise Refused(f"it answers {told}, asked was round {round} of client {client}")
    samples = _count(reply.samples, "its sample count n_k", low=1, high=most_samples)
    upload = Upload(_tensors(reply, largest), samples)
    method.check(upload, state, client)
    for name, tensor in upload.tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise Refused(f"{name} has values that are not finite")
    sha256 = metrics.get("model-sha256")
    if not isinstance(sha256, str) or len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        raise Refused(f"its model hash is {_short(sha256)}")
    figures = read_figures(metrics) if evaluated else None
    return Turn(upload, sha256, figures, _report(metrics), reply.wire_bytes)


def outliers(uploads: Mapping[int, Upload], method: Method, factor: float) -> dict[int, str]:
    """The clients whose update is more than `factor` times as large as the round's median one (of two: the smaller), and why.

    The size is `Method.magnitude`, a root mean square, so it does not depend on how much a client sends. A factor of 0 asks nothing.
    """
    sizes = {client: method.magnitude(upload) for client, upload in uploads.items()}
    middle = statistics.median_low(sizes.values()) if sizes else 0.0
    if not factor or not middle:
        return {}
    return {
        client: f"its update is {size / middle:.3g} times as large as the round's median one; clip-norm-factor is {factor:g}"
        for client, size in sizes.items()
        if not size <= factor * middle  # NaN, from values whose squares overflow, included
    }


def read_figures(metrics: Mapping[str, Any]) -> Figures:
    """The evaluation counts in a client's metrics. Raises Refused for impossible ones."""
    counts = []
    for part in ("validation", "test"):
        whole = _count(metrics.get(part), f"its {part} sample count")
        counts += [_count(metrics.get(f"{part}-correct"), f"its correct {part} predictions", high=whole), whole]
    return Figures(*counts)


def _tensors(reply: Reply, largest: int) -> Tensors:
    names = _json(reply.metrics, "names", list)
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names) or len(names) != len(reply.arrays):
        raise Refused(f"its {len(reply.arrays)} arrays have the names {_short(names)}")
    try:
        return {name: torch.from_numpy(decode(blob, largest)) for name, blob in zip(names, reply.arrays, strict=True)}
    except (ValueError, TypeError) as error:  # TypeError: a dtype that torch does not have
        raise Refused(f"its arrays cannot be decoded ({_short(str(error))})") from None


def _report(metrics: Mapping[str, Any]) -> Report:
    words = {name: metrics.get(name) for name in ("model", "worker")}
    for name, word in words.items():
        if not isinstance(word, str) or len(word) > _WORDS:
            raise Refused(f"its {name} is {_short(word)}")
    if type(metrics.get("lost")) is not bool:
        raise Refused(f"its lost is {_short(metrics.get('lost'))}; allowed: true or false")
    return Report(
        model=str(words["model"]),
        worker=str(words["worker"]),
        loss=_loss(metrics.get("loss"), "its loss"),
        losses=_numbers(metrics, "losses", _loss),
        seconds=_numbers(metrics, "seconds", lambda value, what: _number(value, what, low=0, high=LARGEST_COUNT)),
        flops=_numbers(metrics, "flops", lambda value, what: _count(value, what, high=2**63 - 1)),
        second=_numbers(metrics, "second", lambda value, what: _number(value, what, low=0, high=1)),
        lost=bool(metrics["lost"]),
    )


def _numbers(metrics: Mapping[str, Any], name: str, check: Callable[[Any, str], Any]) -> dict[str, Any]:
    found = _json(metrics, name, dict)
    if len(found) > 100 or any(len(key) > _WORDS for key in found):
        raise Refused(f"its {name} are {_short(found)}")
    return {key: check(value, f"its {name}[{_short(key)[1:-1]}]") for key, value in found.items()}


def _json(metrics: Mapping[str, Any], name: str, kind: type) -> Any:
    try:
        value = json.loads(metrics[name])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Refused(f"its {name} cannot be read ({type(error).__name__})") from None
    if type(value) is not kind:
        raise Refused(f"its {name} are {_short(value)}")
    return value


def _count(value: Any, what: str, low: int = 0, high: int = LARGEST_COUNT) -> int:
    if type(value) is not int or not low <= value <= high:
        raise Refused(f"{what} is {_short(value)}; allowed: an integer from {low} to {high}")
    return value


def _loss(value: Any, what: str) -> float:
    return _number(value, what, low=-_LARGEST_LOSS, high=_LARGEST_LOSS)


def _number(value: Any, what: str, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= value <= high:  # NaN is not
        raise Refused(f"{what} is {_short(value)}; allowed: a number from {low:g} to {high:g}")
    return float(value)


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**100 else "a huge number"
    return text if len(text) <= _WORDS else text[:_WORDS] + "…"
