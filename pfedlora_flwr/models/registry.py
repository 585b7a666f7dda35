"""Names → client models: the package's families, timm's and torchvision's models by name, and
`package.module:Class` for a user's own."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from pfedlora_flwr.errors import UserCodeError, UserError, permissions, user_code
from pfedlora_flwr.experiment import Experiment
from pfedlora_flwr.models import anchored, given, lora, named, own, pretrained, text
from pfedlora_flwr.models.cnn import CNN, SHAPES
from pfedlora_flwr.models.families import CONV1D_SHAPES, MLP, MLP_SHAPES, Conv1d
from pfedlora_flwr.models.kept import (
    frozen_names,
    frozen_parts,
    kept,
    load_kept,
    same_in_both,
    still_parts,
)
from pfedlora_flwr.models.lora_layers import check_called
from pfedlora_flwr.models.model import ClientModel, Family
from pfedlora_flwr.models.neck import Necked
from pfedlora_flwr.models.normed import Normed
from pfedlora_flwr.models.spec import ModelSpec, specs_of
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import generators_kept, seeded
from pfedlora_flwr.training.kinds import TEXT

T = TypeVar("T")
_CLASSES: dict[str, type[CNN] | type[Conv1d] | type[MLP]] = (
    dict.fromkeys(SHAPES, CNN)
    | dict.fromkeys(CONV1D_SHAPES, Conv1d)
    | dict.fromkeys(MLP_SHAPES, MLP)
)
"""Models of ours, by name."""


def models_of(experiment: Experiment, task: Task) -> tuple[ModelSpec, ...]:
    """The client models in turn: client k has number k mod their count. The size of images is only
    said of the libraries', which alone take it."""
    if task.kind == TEXT and experiment.models is None:
        raise UserError(f"models is auto; allowed for text: {_allowed(task)}")
    return tuple(
        one if named.is_library(one.name) else replace(one, model_input=None)
        for one in specs_of(experiment, task.kind.family)
    )


def of_client(client: int, in_turn: Sequence[T]) -> T:
    """What a client has of something that the client models have in turn."""
    return in_turn[client % len(in_turn)]


def build(name: ModelSpec | str, task: Task, width: int | None = None) -> ClientModel:
    """The client model `name`, freshly initialised from torch's global generator; `width`: of its
    last layer's input, if not its own.

    The models of a family are made at that width; any other gets a neck where its own is another.
    What the model's own code has frozen (`requires_grad=False`) stays frozen.
    Raises UserError for an unknown name, for a model that does not take such inputs, and for one of
    which nothing is trained.
    """
    name = _spec(name)
    model = _built(name, task, width)
    every = model.named_parameters(remove_duplicate=False)
    trained = [(at, parameter) for at, parameter in every if parameter.requires_grad]
    if not trained:
        raise UserError(f"model {name!r}: none of its parameters is trained")
    first: dict[int, str] = {}
    for at, parameter in trained:
        if first.setdefault(id(parameter), at) != at:
            raise UserError(
                f"model {name!r}: {first[id(parameter)]} and {at} are one tensor; allowed: trained"
                " tensors under one name each"
            )
    model.frozen = frozen_parts(model)
    model.awake = tuple(
        layer for part in model.modules() if isinstance(part, ClientModel) for layer in part.awake
    )
    if frozen := frozen_names(model):
        model.given = frozenset(frozen if model.base else _given(name, task, width, _source(name)))
        model.still = still_parts(model)
    return model.train()


def _spec(name: ModelSpec | str) -> ModelSpec:
    return ModelSpec.parse(name) if isinstance(name, str) else name


def _built(said: ModelSpec, task: Task, width: int | None) -> ClientModel:
    """The model alone."""
    bare = said.name
    library = named.parse(bare)
    if task.kind == TEXT and not library and not text.is_text(bare):
        raise UserError(f"model {bare!r} has no tokeniser; allowed for text: {_allowed(task)}")
    logits = said.representation == "pretrained-logits"
    width = said.neck or width
    if logits and not (library and library.weights):
        raise UserError(
            f"representation is {said.representation}, and model {bare!r} has no weights with a"
            " classifier; allowed: timm:NAME:pretrained, timm:NAME:weights=FILE, and torchvision's"
        )
    if said.anchors and not ((library and library.weights) or text.is_text(bare)):
        raise UserError(
            f"representation is by anchors, and model {bare!r} has no library's weights; allowed:"
            " timm:NAME:pretrained, timm:NAME:weights=FILE, torchvision's, and hf:FOLDER"
        )
    if bare in _CLASSES:
        _check_kind(bare, task)
        family = _CLASSES[bare]
        own_width = None if said.neck else width
        model: ClientModel = family(bare, task, own_width) if own_width else family(bare, task)
    elif library:
        if library.weights and said.train != "all":
            model = pretrained.build(library, task, said.model_input, logits=logits)
        else:
            model = named.build(library, task, said.model_input)
    elif text.is_text(bare):
        model = text.build(bare, task, frozen=said.train != "all")
    elif ":" in bare:
        model = made(
            bare, "model", lambda found: own.client_model(bare, task, own.construct(found, task))
        )
    else:
        raise UserError(f"models names {bare!r}; allowed: {_allowed(task)}")
    if text.is_text(bare):
        model.description = text.without_path(bare)
    else:
        model.description = f"{library.library}:{library.architecture}" if library else bare
    if logits:
        model.description += ", read by its classifier"
    if said.anchors:
        assert isinstance(model, own.Whole)
        model = anchored.anchored(model, said, task)
    inner = model
    if said.train != "all":
        model.requires_grad_(False)
    if width is not None and (width != model.width or said.neck):
        base, model = model.base, Necked(model, width, task.classes)
        model.base = base
    if said.representation_norm != "none":
        model = Normed(model)
    if said.train != "all":
        model.last_layer().requires_grad_(True)
    if said.train == "lora":  # drawn last: the head begins as with train=head
        lora.adapt(inner, said)
    return model


@dataclass(frozen=True)
class Facts:
    """What is asked often of a client model, and is the same for all that are built: its width,
    that of FC1 where it is one of a family, its number of parameters, whether its last layer has a
    bias and is trained, and whether it trains with batch normalisation."""

    width: int
    trunk_width: int | None
    parameters: int
    bias: bool
    trained_last: bool
    batch_norm: bool


def facts(name: ModelSpec | str, task: Task, width: int | None = None) -> Facts:
    """The Facts of `build(name, task, width)`; it is built once a process. Raises UserError as
    `build`, and where LoRA would train nothing."""
    name = _spec(name)
    return _facts(name, task, width, _source(name))


def check_lora(name: ModelSpec, task: Task) -> None:
    """Raises UserError where LoRA is in the model `name` and would train nothing."""
    if name.train == "lora":
        facts(name, task)


@torch.no_grad()
def check_stored(name: ModelSpec, task: Task) -> None:
    """Raises UserError unless another build of a user's own model, with what is stored of it,
    predicts the same."""
    if _source(name) is None:
        return
    inputs, builds = task.random(8, torch.Generator().manual_seed(0)), []
    for seed in (0, 1):
        with seeded(seed):
            builds.append(build(name, task))
    with seeded(0), user_code("model", name.name):
        builds[0](inputs)  # in training: what this changes is stored, too
    load_kept(builds[1], kept(builds[0]))
    if not own.same(*(model.eval()(inputs) for model in builds)):
        raise UserError(
            f"model {name!s}: its parameters and persistent buffers, which are stored, are not all"
            " of it: layers in a plain list, for one, belong in an nn.ModuleList"
        )


def any_batch_norm(names: tuple[ModelSpec, ...], task: Task, small: bool = False) -> bool:
    """Whether one of these client models trains with batch normalisation: it cannot train on a
    batch of one sample.

    small: whether the smallest of them is trained besides, as a whole."""
    trained = (*names, smallest(names, task)) if small else names
    return any(facts(name, task).batch_norm for name in trained)


def small_model(names: tuple[ModelSpec, ...], task: Task, width: int | None = None) -> ClientModel:
    """A fresh small model that clients can share: the smallest of theirs, CNN-5 of the five, CNN-1
    where all are CNN-1."""
    return build(smallest(names, task), task, width)


def small_extractor(
    names: tuple[ModelSpec, ...], task: Task, width: int | None = None
) -> ClientModel:
    """The same without its last layer: it has `encode` alone, and only what that needs travels."""
    model = small_model(names, task, width)
    model.drop_last_layer()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(
            f"the smallest client model, {model.description}, trains its last layer alone: it has"
            " no extractor that could be shared"
        )
    return model


def smallest(names: tuple[ModelSpec, ...], task: Task) -> ModelSpec:
    """The one of these client models that has the fewest parameters, the first of ties; as it is by
    itself, whatever its clients train of it."""
    alone = dict.fromkeys(ModelSpec(one.name, model_input=one.model_input) for one in names)
    return min(alone, key=lambda name: facts(name, task).parameters)


def located(models: str) -> str:
    """The key `models` with the files that it names made absolute."""
    return ",".join(
        text.located(name.strip())
        if text.is_text(name.strip())
        else (named.located(name.strip()) if "=" in name else name)
        for name in models.split(",")
    )


def check_allowed(said: ModelSpec) -> None:
    """Asks whether a run may name this client model here, before anything of it is looked at.
    Raises NotAllowed."""
    bare = said.name
    if library := named.parse(bare):
        named.check_allowed(library)
    elif text.is_text(bare):
        text.check_allowed(text.parse(bare))
    elif ":" in bare:
        permissions.check_code("model", bare)
    if said.anchors:
        permissions.check_file("representation", said.anchors, permissions.WEIGHTS)
    if said.lora_init.startswith(lora.FOLDER):
        folder = said.lora_init.removeprefix(lora.FOLDER)
        permissions.check_file("lora.init", folder, permissions.WEIGHTS)


def load_object(path: str, what: str) -> Any:
    """The object at `package.module:Name`, or given under this name (`models.given`). Raises
    UserError when there is none or it is not allowed here, UserCodeError when its module raises."""
    permissions.check_code(what, path)
    if given.is_given(path):
        return given.find(path, what)
    module, _, attribute = path.partition(":")
    try:
        with generators_kept(), user_code(what, path):
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
    permissions.check_defined(what, path, found)
    return found


def made(path: str, what: str, make: Callable[[Any], T]) -> T:
    """What `make` makes of the object at `package.module:Name`. Raises UserCodeError when the
    user's code raises in it."""
    found = load_object(path, what)
    draws = generators_kept() if what == "dataset" else nullcontext()  # a model's are its own
    with draws, user_code(what, path):
        return make(found)


def _allowed(task: Task) -> str:
    """The names of models that take a Task's inputs."""
    ours = (name for name, family in _CLASSES.items() if family.kind == task.kind)
    found = ", ".join((*ours, *task.kind.libraries))
    return found if task.kind == TEXT else f"{found}, or package.module:Class"


def _check_kind(name: str, task: Task) -> None:
    """Raises UserError if a model of ours does not take a Task's inputs."""
    if (kind := _CLASSES[name].kind) != task.kind:
        raise UserError(
            f"model {name!r} is for {kind}, and the inputs are {task.kind} {list(task.shape)};"
            f" allowed: {_allowed(task)}"
        )


def _source(said: ModelSpec) -> object:
    """What a user's name stands for now; None for a model that is not a user's own."""
    name = said.name
    own_ = ":" in name and not named.is_library(name) and not text.is_text(name)
    return load_object(name, "model") if own_ else None


@lru_cache(maxsize=256)
def _given(name: ModelSpec, task: Task, width: int | None, source: object) -> set[str]:
    """The names of a model's frozen tensors that every build has alike, found by two of them."""
    builds = []
    for seed in (0, 1):
        with seeded(seed):
            builds.append(_built(name, task, width))
    return same_in_both(*builds)


@lru_cache(maxsize=256)
def _facts(name: ModelSpec, task: Task, width: int | None, source: object) -> Facts:
    """source: what a user's name stands for now."""
    # what the caller draws must not depend on whether this is the first call
    with seeded(0), named.random_weights(base=False):
        model = build(name, task, width)
    last = model.last_layer()
    batch_norm = any(
        isinstance(module, BatchNorm) and module.training for module in model.modules()
    )
    if name.train == "lora":
        check_called(str(name), model, task)
    return Facts(
        model.width,
        model.trunk_width if isinstance(model, Family) else None,
        sum(p.numel() for p in model.parameters()),
        last.bias is not None,
        last.weight.requires_grad,
        batch_norm,
    )
