"""What a run sends and computes: parameters, payload bytes, bytes on the wire and operations, per
visit and in total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import cast

from torch import Tensor

from pfedlora_flwr.runs.rows import CostFields


@dataclass(frozen=True)
class Cost:
    """Of one visit, or a sum of visits; `CostFields` says what each field counts."""

    parameters_up: int = 0
    parameters_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    wire_up: int = 0
    wire_down: int = 0
    flops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def as_dict(self) -> CostFields:
        return cast(CostFields, asdict(self))


def parameters(tensors: Mapping[str, Tensor]) -> int:
    """Elements of the floating-point tensors: integers (class names, counts) are metadata."""
    return sum(t.numel() for t in tensors.values() if t.is_floating_point())


def payload_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of all tensors."""
    return sum(t.nbytes for t in tensors.values())
