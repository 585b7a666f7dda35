"""Names → methods. Modules are imported when they are asked for, so a method may import the configuration."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING

from pfedlora_flwr.keys import UserError

if TYPE_CHECKING:
    from pfedlora_flwr.methods.method import Method

_CLASSES = {
    "pfedlora": "PFedLoRA",
    "standalone": "Standalone",
    "fd": "FD",
    "fedproto": "FedProto",
    "fml": "FML",
    "fedkd": "FedKD",
    "lg_fedavg": "LGFedAvg",
    "fedavg": "FedAvg",
}
NAMES = tuple(_CLASSES)


def find(name: str) -> type[Method]:
    """The method class `name`, ours or `package.module:Class`. Raises UserError for an unknown one."""
    from pfedlora_flwr.methods.method import Method
    from pfedlora_flwr.models.registry import load_object

    if name in _CLASSES:
        return getattr(import_module(f"pfedlora_flwr.methods.{name}"), _CLASSES[name])
    if ":" not in name:
        raise UserError(f"method is {name!r}; allowed: {', '.join(NAMES)}, or package.module:Class")
    found = load_object(name, "method")
    if not inspect.isclass(found) or not issubclass(found, Method):
        raise UserError(f"method {name!r}: expected a subclass of pfedlora_flwr.methods.method.Method")
    if inspect.isabstract(found):
        raise UserError(f"method {name!r}: it lacks {', '.join(sorted(found.__abstractmethods__))}")
    return found
