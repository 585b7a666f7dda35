"""Names → client models: CNN-1 to CNN-5, and `package.module:Class` for a user's own."""

from __future__ import annotations

import importlib
import os
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from pfedlora_flwr.errors import UserCodeError, UserError, user_code
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.models.cnn import CNN, SHAPES, ClientModel, Custom
from pfedlora_flwr.models.families import CONV1D_SHAPES, MLP, MLP_SHAPES, Conv1d
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import seeded

FAMILIES = {"images": "cnn", "series": "conv1d", "vectors": "mlp"}
"""The kind of input → the family of models that `models: auto` takes."""
_CLASSES: dict[str, type[CNN] | type[Conv1d] | type[MLP]] = (
    dict.fromkeys(SHAPES, CNN) | dict.fromkeys(CONV1D_SHAPES, Conv1d) | dict.fromkeys(MLP_SHAPES, MLP)
)
"""Models of ours, by name."""


def names_of(experiment: Experiment, task: Task) -> tuple[str, ...]:
    """The client models in turn: client k has number k mod their count."""
    return experiment.model_names(FAMILIES[task.kind])


def build(name: str, task: Task, width: int | None = None) -> ClientModel:
    """The client model `name`, freshly initialised from torch's global generator; `width`: of its last layer's input, if not its own.

    Raises UserError for an unknown name, for a model that does not take such inputs, and for a width that a user's model does not have.
    """
    if name in _CLASSES:
        _check_kind(name, task)
        family = _CLASSES[name]
        model: ClientModel = family(name, task, width) if width else family(name, task)
    elif ":" in name:
        model = _custom(name, task)
    else:
        raise UserError(f"models names {name!r}; allowed: {_allowed(task)}")
    if width not in (None, model.width):
        raise UserError(f"model {name!r} has a representation {model.width} wide, and {width} is wanted; take one of: {_ours(task)}")
    model.description = name
    return model


def small_model(names: tuple[str, ...], task: Task, width: int | None = None) -> ClientModel:
    """A fresh small model that clients can share: the smallest of theirs, CNN-5 of the five, CNN-1 where all are CNN-1."""
    return build(smallest(names, task), task, width)


def small_extractor(names: tuple[str, ...], task: Task) -> ClientModel:
    """The same without its last layer: it has `encode` alone, and only what that needs travels."""
    model = small_model(names, task)
    model.drop_last_layer()
    return model


@lru_cache(maxsize=16)
def smallest(names: tuple[str, ...], task: Task) -> str:
    """The one of these client models that has the fewest parameters, the first of ties."""

    def size(name: str) -> int:
        with seeded(0):  # what the caller draws must not depend on whether this is the first call
            return sum(p.numel() for p in build(name, task).parameters())

    return min(dict.fromkeys(names), key=size)


def load_object(path: str, what: str) -> Any:
    """The object at `package.module:Name`. Raises UserError when there is none, UserCodeError when its module raises."""
    module, _, attribute = path.partition(":")
    try:
        with user_code(what, path):
            imported = importlib.import_module(module)
    except UserCodeError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and missing.name and f"{module}.".startswith(f"{missing.name}."):
            where = "run this in the folder where it lies, or install it"
            raise UserError(f"{what} {path!r}: module {module!r} cannot be imported from {os.getcwd()}: {where}") from None
        raise
    found = getattr(imported, attribute, None)
    if found is None:
        raise UserError(f"{what} {path!r}: module {module!r} has no {attribute!r}")
    return found


def _ours(task: Task) -> str:
    """The models of ours that take a Task's inputs."""
    return ", ".join(name for name, family in _CLASSES.items() if family.kind == task.kind)


def _allowed(task: Task) -> str:
    return f"{_ours(task)}, or package.module:Class"


def _check_kind(name: str, task: Task) -> None:
    """Raises UserError where a model of ours does not take a Task's inputs."""
    if (kind := _CLASSES[name].kind) != task.kind:
        raise UserError(f"model {name!r} is for {kind}, and the inputs are {task.kind} {list(task.shape)}; allowed: {_allowed(task)}")


def _custom(name: str, task: Task) -> ClientModel:
    found = load_object(name, "model")
    with user_code("model", name):
        return _checked(name, task, found(task.classes))


def _checked(name: str, task: Task, module: Any) -> ClientModel:
    """A user's module as a client model, tried on two blank images. Raises UserError where it is none."""
    shaped = isinstance(module, nn.Module) and hasattr(module, "encoder") and isinstance(getattr(module, "head", None), nn.Linear)
    if not shaped:
        raise UserError(f"model {name!r}: expected an nn.Module with an `encoder` and a `head` that is an nn.Linear")
    training, blank = module.training, task.blank(2)
    with torch.no_grad():
        representation = module.eval().encoder(blank)
    if not isinstance(representation, Tensor):
        raise UserError(f"model {name!r}: the encoder gives {kind(representation)}, expected a tensor [images, width]")
    if representation.ndim != 2 or representation.shape[1] != module.head.in_features:
        shape = list(representation.shape)
        raise UserError(f"model {name!r}: the encoder gives {shape} for 2 images, its head takes [2, {module.head.in_features}]")
    if module.head.out_features != task.classes:
        raise UserError(f"model {name!r}: its head gives {module.head.out_features} logits, the dataset has {task.classes} classes")
    with torch.no_grad():
        ours = module.head(representation)
    if type(module).forward is not nn.Module.forward:
        with torch.no_grad():
            own = module(blank)
        if not isinstance(own, Tensor) or own.shape != ours.shape or not torch.allclose(own, ours, rtol=1e-4, atol=1e-5, equal_nan=True):
            raise UserError(
                f"model {name!r}: its forward gives something else than head(encoder(images)), which alone is trained and asked; "
                "move what forward adds into the encoder, or make the two equal"
            )
    module.train(training)
    return Custom(module, representation.shape[1])


def kind(value: object) -> str:
    """What a value is that is none of what was expected, for messages."""
    return "None" if value is None else type(value).__name__
