"""Names → methods: ours, a line each, and `package.module:Class` for a user's own."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib import import_module

from pfedlora_flwr.errors import UserError, user_code
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.models.registry import load_object
from pfedlora_flwr.models.task import Task

_CLASSES = {
    "pfedlora": "PFedLoRA",
    "standalone": "Standalone",
    "fml": "FML",
    "fedkd": "FedKD",
    "lg_fedavg": "LGFedAvg",
    "fd": "FD",
    "fedproto": "FedProto",
    "fedavg": "FedAvg",
    "fedgh": "FedGH",
    "fedssa": "FedSSA",
    "fedtgp": "FedTGP",
    "fedre": "FedRE",
    "fedorgp": "FedORGP",
    "fedmrl": "FedMRL",
    "pfedes": "PFedES",
    "pfedmoe": "PFedMoE",
    "pfedafm": "PFedAFM",
}
"""Module in this folder → class. Their order is that of help, tables and colours; a new one goes to the end."""
NAMES = tuple(_CLASSES)


def find(name: str) -> type[Method]:
    """The method class `name`, ours or `package.module:Class`. Raises UserError for an unknown one."""
    if name in _CLASSES:
        return getattr(import_module(f"pfedlora_flwr.methods.{name}"), _CLASSES[name])
    if ":" not in name:
        raise UserError(f"method is {name!r}; allowed: {', '.join(NAMES)}, or package.module:Class")
    found = load_object(name, "method")
    if not inspect.isclass(found) or not issubclass(found, Method):
        raise UserError(
            f"method {name!r}: expected a subclass of pfedlora_flwr.methods.method.Method"
        )
    if inspect.isabstract(found):
        raise UserError(f"method {name!r}: it lacks {', '.join(sorted(found.__abstractmethods__))}")
    return found


def make(experiment: Experiment, task: Task) -> Method:
    """The Experiment's method, for what its models take and give. Raises UserError where it does not take such inputs."""
    found = find(experiment.method)
    if found.needs_images and task.kind != "images":
        raise UserError(
            f"method {experiment.method} needs images, and the inputs are {task.kind} {list(task.shape)}"
        )
    if experiment.augment and task.kind != "images":
        raise UserError(
            f"augment is true; allowed: false for {task.kind}: only images are flipped and cropped"
        )
    with user_code("method", experiment.method):
        method = found(experiment, task)
    if experiment.batch_size == 1 and method.has_batch_norm:
        raise UserError("batch-size is 1; allowed: at least 2 for models with batch normalisation")
    return method


def title(name: str) -> str:
    """A method's name for people, without importing a user's own: that one goes by its class."""
    return find(name).title if name in _CLASSES else name.rpartition(":")[2]


def ordered(names: Iterable[str]) -> list[str]:
    """Methods as tables list them: ours, then users' own, and pFedLoRA, which is what they are compared with, last."""
    rank = {name: i for i, name in enumerate(NAMES[1:])} | {NAMES[0]: len(NAMES) + 1}
    return sorted(names, key=lambda name: rank.get(name, len(NAMES)))
