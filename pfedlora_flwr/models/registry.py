"""Names → client models: our families, those of timm and torchvision by name, and `package.module:Class` for a user's own."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from pfedlora_flwr.errors import UserCodeError, UserError, user_code
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.models import named, own
from pfedlora_flwr.models.cnn import CNN, SHAPES
from pfedlora_flwr.models.families import CONV1D_SHAPES, MLP, MLP_SHAPES, Conv1d
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.neck import Necked
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import seeded

FAMILIES = {"images": "cnn", "series": "conv1d", "vectors": "mlp"}
"""The kind of input → the family of models that `models: auto` takes."""
_CLASSES: dict[str, type[CNN] | type[Conv1d] | type[MLP]] = (
    dict.fromkeys(SHAPES, CNN)
    | dict.fromkeys(CONV1D_SHAPES, Conv1d)
    | dict.fromkeys(MLP_SHAPES, MLP)
)
"""Models of ours, by name."""


def names_of(experiment: Experiment, task: Task) -> tuple[str, ...]:
    """The client models in turn: client k has number k mod their count."""
    return experiment.model_names(FAMILIES[task.kind])


def build(name: str, task: Task, width: int | None = None) -> ClientModel:
    """The client model `name`, freshly initialised from torch's global generator; `width`: of its last layer's input, if not its own.

    The models of a family are made at that width; any other gets a neck where its own is another.
    Raises UserError for an unknown name, and for a model that does not take such inputs.
    """
    library = named.parse(name)
    if name in _CLASSES:
        _check_kind(name, task)
        family = _CLASSES[name]
        model: ClientModel = family(name, task, width) if width else family(name, task)
    elif library:
        model = named.build(library, task)
    elif ":" in name:
        found = load_object(name, "model")
        with user_code("model", name):
            model = own.client_model(name, task, own.construct(found, task))
    else:
        raise UserError(f"models names {name!r}; allowed: {_allowed(task)}")
    model.description = f"{library.library}:{library.architecture}" if library else name
    return model if width in (None, model.width) else Necked(model, width, task.classes)


@dataclass(frozen=True)
class Facts:
    """What is asked often of a client model, and is the same for all that are built: `widths` as in ClientModel, its number of
    parameters, and whether its last layer has a bias and it has batch normalisation."""

    widths: tuple[int, int]
    parameters: int
    bias: bool
    batch_norm: bool


def facts(name: str, task: Task, width: int | None = None) -> Facts:
    """The Facts of `build(name, task, width)`; it is built once a process."""
    source = load_object(name, "model") if ":" in name and not named.is_library(name) else None
    return _facts(name, task, width, source)


def small_model(names: tuple[str, ...], task: Task, width: int | None = None) -> ClientModel:
    """A fresh small model that clients can share: the smallest of theirs, CNN-5 of the five, CNN-1 where all are CNN-1."""
    return build(smallest(names, task), task, width)


def small_extractor(names: tuple[str, ...], task: Task, width: int | None = None) -> ClientModel:
    """The same without its last layer: it has `encode` alone, and only what that needs travels."""
    model = small_model(names, task, width)
    model.drop_last_layer()
    if not any(True for _ in model.parameters()):
        raise UserError(
            f"the smallest client model, {model.description}, is a last layer alone: it has no extractor that could be shared"
        )
    return model


def smallest(names: tuple[str, ...], task: Task) -> str:
    """The one of these client models that has the fewest parameters, the first of ties."""
    return min(dict.fromkeys(names), key=lambda name: facts(name, task).parameters)


def located(models: str) -> str:
    """The key `models` with the files that it names made absolute."""
    return ",".join(
        named.located(name.strip()) if "=" in name else name for name in models.split(",")
    )


def load_object(path: str, what: str) -> Any:
    """The object at `package.module:Name`. Raises UserError when there is none, UserCodeError when its module raises."""
    module, _, attribute = path.partition(":")
    try:
        with user_code(what, path):
            imported = importlib.import_module(module)
    except UserCodeError as error:
        missing = error.__cause__
        if (
            isinstance(missing, ModuleNotFoundError)
            and missing.name
            and f"{module}.".startswith(f"{missing.name}.")
        ):
            where = "run this in the folder where it lies, or install it"
            raise UserError(
                f"{what} {path!r}: module {module!r} cannot be imported from {os.getcwd()}: {where}"
            ) from None
        raise
    found = getattr(imported, attribute, None)
    if found is None:
        raise UserError(f"{what} {path!r}: module {module!r} has no {attribute!r}")
    return found


def _allowed(task: Task) -> str:
    """The names of models that take a Task's inputs."""
    ours = ", ".join(name for name, family in _CLASSES.items() if family.kind == task.kind)
    libraries = "timm:NAME, torchvision:NAME, " if task.kind == "images" else ""
    return f"{ours}, {libraries}or package.module:Class"


def _check_kind(name: str, task: Task) -> None:
    """Raises UserError where a model of ours does not take a Task's inputs."""
    if (kind := _CLASSES[name].kind) != task.kind:
        raise UserError(
            f"model {name!r} is for {kind}, and the inputs are {task.kind} {list(task.shape)}; allowed: {_allowed(task)}"
        )


@lru_cache(maxsize=256)
def _facts(name: str, task: Task, width: int | None, source: object) -> Facts:
    """source: what a user's name stands for now."""
    with (
        seeded(0),
        named.random_weights(),
    ):  # what the caller draws must not depend on whether this is the first call
        model = build(name, task, width)
    batch_norm = any(isinstance(module, BatchNorm) for module in model.modules())
    return Facts(
        model.widths,
        sum(p.numel() for p in model.parameters()),
        model.last_layer().bias is not None,
        batch_norm,
    )
