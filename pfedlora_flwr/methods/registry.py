"""Names → methods: the package's, one line each, and `package.module:Class` for a user's own."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.methods import own
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.models.registry import any_batch_norm, load_object
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.kinds import IMAGES

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
    "pfedlora_plus": "PFedLoRAPlus",
    "fedper": "FedPer",
    "fedrep": "FedRep",
    "fedprox": "FedProx",
    "ditto": "Ditto",
    "fedit": "FedIT",
    "ffa_lora": "FFALoRA",
    "fedsa_lora": "FedSALoRA",
    "flexlora": "FlexLoRA",
    "fedrod": "FedRoD",
    "rolora": "RoLoRA",
    "flora": "FLoRA",
    "fedex_lora": "FedExLoRA",
    "feddpa": "FedDPA",
    "fedbabu": "FedBABU",
    "fedbn": "FedBN",
    "apfl": "APFL",
    "fedala": "FedALA",
    "fedalt": "FedALT",
    "fedncm": "FedNCM",
    "fedlda": "FedLDA",
    "fedridge": "FedRidge",
}
"""Module in this folder → class. Their order is that of help, tables and colours; a new one goes to
the end."""
NAMES = tuple(_CLASSES)
POOLED = "pooled"
"""The reference that trains on the rows of all clients: no federation, and not in `NAMES`."""
_ALL = _CLASSES | {POOLED: "Pooled"}
_NEAR = 0.85
"""How alike two names are of which one is meant: FedProx is not FedProto."""


def find(name: str) -> type[Method]:
    """The method class `name`, ours or `package.module:Class`. Raises UserError for an unknown
    one."""
    if name in _ALL:
        return getattr(import_module(f"pfedlora_flwr.methods.{name}"), _ALL[name])
    if ":" not in name:
        by_letters = {_letters(known): known for known in NAMES}  # people write LG-FedAvg
        near = difflib.get_close_matches(_letters(name), by_letters, 1, _NEAR)
        meant = f"did you mean {by_letters[near[0]]!r}? " if near else ""
        raise UserError(
            f"method is {name!r}; {meant}allowed: {', '.join(_ALL)}, or package.module:Class"
        )
    found = load_object(name, "method")
    if not inspect.isclass(found) or not issubclass(found, Method):
        raise UserError(
            f"method {name!r}: expected a subclass of pfedlora_flwr.methods.method.Method"
        )
    if inspect.isabstract(found):
        raise UserError(f"method {name!r}: it lacks {', '.join(sorted(found.__abstractmethods__))}")
    if not _is_frozen(found.Options):
        raise UserError(
            f"method {name!r}: its Options is no frozen dataclass; expected"
            " `@dataclass(frozen=True)` above `class Options(Method.Options)`"
        )
    return found


def _is_frozen(options: Any) -> bool:
    """Whether it is a frozen dataclass whose own fields are declared as such."""
    if not (isinstance(options, type) and dataclasses.is_dataclass(options)):
        return False
    own, params = vars(options), getattr(options, "__dataclass_params__", None)
    declared = "__dataclass_params__" in own or not own.get("__annotations__")
    return declared and params is not None and params.frozen


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def make(experiment: Experiment, task: Task) -> Method:
    """The Experiment's method, for what its models take and give. Raises UserError if it does
    not take such inputs."""
    found = find(experiment.method)
    if found.needs_images and task.kind != IMAGES:
        raise UserError(
            f"method {experiment.method} needs images, and the inputs are {task.kind}"
            f" {list(task.shape)}"
        )
    if experiment.augment and task.kind != IMAGES:
        raise UserError(
            f"augment is true; allowed: false for {task.kind}: only images are flipped and cropped"
        )
    method = own.construct(found, experiment, task)
    if experiment.batch_size == 1 and any_batch_norm(method.model_names, task, method.shares_small):
        raise UserError("batch-size is 1; allowed: at least 2 for models with batch normalisation")
    return method


def title(name: str) -> str:
    """A method's name for people, without importing a user's own: that one goes by its class."""
    return find(name).title if name in _ALL else name.rpartition(":")[2]


def titles(names: Iterable[str]) -> dict[str, str]:
    """Names for people, no two alike: a user's own that would be goes by its whole name."""
    found = {name: title(name) for name in names}
    several = Counter(found.values())
    return {
        name: name if ":" in name and several[found[name]] > 1 else found[name] for name in found
    }


def ordered(names: Iterable[str]) -> list[str]:
    """Methods as tables list them: the references, ours, then users' own, and pFedLoRA, which is
    what they are compared with, last."""
    rank: dict[str, float] = {name: i for i, name in enumerate(NAMES[1:])}
    rank |= {POOLED: 0.5, NAMES[0]: len(NAMES) + 1}
    return sorted(names, key=lambda name: rank.get(name, len(NAMES)))
