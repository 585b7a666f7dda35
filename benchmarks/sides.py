"""What a benchmark compares unless it is told: our methods that run client models of different
structures."""

from __future__ import annotations

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods.registry import NAMES


def methods() -> str:
    """Their names, separated by commas."""
    return ",".join(name for name in NAMES if _takes_different_models(name))


def _takes_different_models(name: str) -> bool:
    try:
        from_flat({"method": name, "setting": "heterogeneous"})
    except UserError:
        return False
    return True
