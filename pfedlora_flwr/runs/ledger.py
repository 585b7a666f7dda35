"""What a run sent and computed: parameters, payload bytes, bytes on the wire and operations, of one client's turn and summed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from torch import Tensor


@dataclass(frozen=True)
class Entry:
    """One client's turn, or a sum of turns. up: from client to server.

    parameters: elements of floating-point tensors. bytes: of all tensors. wire: of whole messages, names, metrics and headers included.
    flops: floating-point operations the clients executed in training (2 a multiply-add).
    """

    parameters_up: int = 0
    parameters_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    wire_up: int = 0
    wire_down: int = 0
    flops: int = 0

    def __add__(self, other: Entry) -> Entry:
        return Entry(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def parameters(tensors: Mapping[str, Tensor]) -> int:
    """Elements of the floating-point tensors: integers (class names, counts) are metadata."""
    return sum(t.numel() for t in tensors.values() if t.is_floating_point())


def payload_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in tensors.values())
