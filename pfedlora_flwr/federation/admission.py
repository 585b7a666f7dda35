"""The server's checks of an update: it is admitted only if everything about it is as requested.

The order matters: sizes first, before anything is decoded; then the report, the arrays and their
numbers. When a round's updates are all there, links of the chain look at them together."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch

from pfedlora_flwr.errors import short
from pfedlora_flwr.federation.messages import Report, count
from pfedlora_flwr.federation.wire import Reply, decode
from pfedlora_flwr.methods.method import Diverged, Method, Refused, Tensors, Upload
from pfedlora_flwr.runs.ledger import Cost, parameters, payload_bytes

LARGEST_METRICS = 2**20
"""Bytes of a message beside its arrays."""


@dataclass(frozen=True)
class Admitted:
    """A client's visit that was admitted: its account of it, n_k (None where it is hidden), and
    what it sent up and computed."""

    report: Report
    samples: int | None
    cost: Cost


def admit(
    reply: Reply,
    method: Method,
    state: Tensors,
    client: int,
    round: int,
    most_samples: int,
    evaluated: bool = True,
    *,
    told: Set[str],
    tells_samples: bool = True,
) -> tuple[Admitted, Upload]:
    """The visit in a reply to `round`'s instruction, with its counts where it was told to evaluate.
    Raises Refused with the reason.

    told: the fields of the report that are taken. tells_samples: whether the upload's
    weight is n_k."""
    largest, size = method.largest_upload(state), sum(map(len, reply.arrays))
    if size > largest + 4096 * (len(reply.arrays) + 1):
        raise Refused(f"its arrays have {size} bytes, at most {largest} are expected")
    if reply.wire_bytes - size > LARGEST_METRICS + 4096 * len(reply.arrays):
        raise Refused(f"its message has {reply.wire_bytes} bytes, of which {size} are arrays")
    report = admit_report(reply.metrics, client, round, evaluated, told)
    samples = count(reply.samples, "its sample count n_k", low=1, high=most_samples)
    upload = Upload(_tensors(reply, report.names, largest), samples)
    method.check(upload, method.renewed(state, round), client)
    for name, tensor in upload.tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise Diverged(f"{name} has values that are not finite")
    cost = Cost(
        parameters_up=parameters(upload.tensors),
        bytes_up=payload_bytes(upload.tensors),
        wire_up=reply.wire_bytes,
        flops=sum((report.flops_by_phase or {}).values()),
    )
    return Admitted(report, samples if tells_samples else None, cost), upload


def admit_report(
    metrics: Mapping[str, Any],
    client: int,
    round: int,
    evaluated: bool,
    told: Set[str],
) -> Report:
    """A client's account of its visit in `round`. Raises Refused for one that cannot be, or that
    answers something else. told: the fields that are taken."""
    report = Report.from_metrics(metrics, evaluated, told)
    if (report.round, report.client) != (round, client):
        raise Refused(
            f"it answers round {report.round} as client {report.client}, asked was round {round} of"
            f" client {client}"
        )
    return report


def _tensors(reply: Reply, names: list[str], largest: int) -> Tensors:
    if len(set(names)) != len(names) or len(names) != len(reply.arrays):
        raise Refused(f"its {len(reply.arrays)} arrays have the names {short(names)}")
    try:
        return {
            name: torch.from_numpy(decode(blob, largest))
            for name, blob in zip(names, reply.arrays, strict=True)
        }
    except (ValueError, TypeError) as error:  # TypeError: a dtype that torch does not have
        raise Refused(f"its arrays cannot be decoded ({short(str(error))})") from None
