"""pFedLoRA and the methods it is compared with, as a Flower application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pfedlora_flwr.version import __version__

if TYPE_CHECKING:
    from pfedlora_flwr.api import (
        Comparison,
        Newcomer,
        Run,
        UserError,
        adapt,
        compare,
        decide,
        list_datasets,
        list_keys,
        list_methods,
        load,
        run,
    )

__all__ = [
    "Comparison",
    "Newcomer",
    "Run",
    "UserError",
    "__version__",
    "adapt",
    "compare",
    "decide",
    "list_datasets",
    "list_keys",
    "list_methods",
    "load",
    "run",
]


def __getattr__(name: str) -> Any:
    """The Python API, imported when it is first asked for: PyTorch takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pfedlora_flwr import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__
