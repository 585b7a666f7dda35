"""Any nn.Module as a client model: with encoder and head, or one whole module, whose last linear
layer is the head.

What is trained and asked is what its `forward` computes, where it has one.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pfedlora_flwr.errors import UserError, brief, kind
from pfedlora_flwr.models.model import ClientModel, WithLast, twin
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import generators, generators_kept, seeded
from pfedlora_flwr.training.loop import known_output

_INPUTS, _TIMES = 64, 8
"""How many inputs are evaluated how often where an evaluation draws numbers."""


class Parted(ClientModel):
    """A module with `encoder` ([B, *shape] → [B, width]) and `head` (a Linear)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.width = self.last_layer().in_features

    def encode(self, inputs: Tensor) -> Tensor:
        return self.module.encoder(inputs)  # type: ignore[operator]

    def last_layer(self) -> nn.Linear:
        return self.module.head  # type: ignore[return-value]

    def drop_last_layer(self) -> None:
        self.module.head = nn.Identity()

    def with_last(self, layer: nn.Linear) -> Self:
        other = twin(self)
        other.module = twin(self.module)
        other.module.head = layer
        return other

    def own_names(self) -> dict[str, str]:
        return {name: name.removeprefix("module.") for name in self.state_dict()}


class Whole(WithLast):
    """A module without its last linear layer, and what is called after it.

    place: the dotted name in the module of what `last` stands for; None: of nothing. side: height
    and width to which images are brought before the module; None: they stay as they are."""

    classifier: tuple[Tensor, Tensor] | None = None
    """Of pretrained weights whose encoder is frozen: weight, [outputs, width of the features], and
    bias; None where there is none."""

    def __init__(
        self, module: nn.Module, last: nn.Linear, place: str | None, side: int | None = None
    ) -> None:
        super().__init__()
        self.module, self.last = module, last
        self.place, self.side = place, side
        self.width = last.in_features

    @classmethod
    def cut(cls, module: nn.Module, place: str, side: int | None = None) -> Whole:
        """The module whose linear layer at `place` makes its logits: it is taken out."""
        last = module.get_submodule(place)
        assert isinstance(last, nn.Linear)
        parent, _, name = place.rpartition(".")
        if place:
            setattr(module.get_submodule(parent), name, nn.Identity())
        return cls(module if place else nn.Identity(), last, place, side)

    def encode(self, inputs: Tensor) -> Tensor:
        known = known_output(self.module, inputs)
        if known is not None:
            return known
        return self.module(inputs if self.side is None else resized(inputs, self.side))

    def own_names(self) -> dict[str, str]:
        if self.place is None:
            return super().own_names()
        at = f"{self.place}." if self.place else ""
        return {
            name: at + rest if part == "last" else rest
            for name in self.state_dict()
            for part, _, rest in [name.partition(".")]
        }


def resized(images: Tensor, side: int) -> Tensor:
    """[B, c, H, W] → [B, c, side, side], bicubic; what becomes smaller is smoothed before."""
    height, width = images.shape[2:]
    if (height, width) == (side, side):
        return images
    return nn.functional.interpolate(
        images, (side, side), mode="bicubic", antialias=side < max(height, width)
    )


def construct(found: Any, task: Task) -> Any:
    """What a user's class, or function, makes for a Task: it takes the number of classes, and
    `shape`, an input's, if it names that."""
    try:
        shaped = "shape" in inspect.signature(found).parameters
    except (TypeError, ValueError):  # what is no class says so when it is called
        shaped = False
    return found(task.classes, shape=task.shape) if shaped else found(task.classes)


def client_model(name: str, task: Task, module: Any) -> ClientModel:
    """A user's module as a client model, tried on two random inputs. Raises UserError if it is
    none."""
    parted = hasattr(module, "encoder") and isinstance(getattr(module, "head", None), nn.Linear)
    forward = isinstance(module, nn.Module) and type(module).forward is not nn.Module.forward
    if not isinstance(module, nn.Module) or not (parted or forward):
        raise UserError(
            f"model {name!r}: expected an nn.Module with a `forward`, or with an `encoder` and a"
            " `head` that is an nn.Linear"
        )
    _complete(module, module if forward else module.encoder, task)  # type: ignore[arg-type]
    if forward:
        _check_still(name, module, task)
    model = _with_forward(name, task, module, parted) if forward else _without(name, task, module)
    if not forward:
        _check_still(name, model, task)
    for key, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            told = f"{key} in its state_dict is {kind(value)}; allowed: tensors"
            raise UserError(f"model {name!r}: {told}")
    if lazy := [key for key, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise UserError(
            f"model {name!r}: {lazy[0]} has no shape: it belongs to a lazy layer that does not run"
        )
    return model


def _with_forward(name: str, task: Task, module: nn.Module, parted: bool) -> ClientModel:
    logits = outputs(module, module, task)
    if (found := _shape(logits[0])) != [2, task.classes]:
        raise UserError(
            f"model {name!r}: its forward gives {found} for 2 {task.kind}, expected logits, [2,"
            f" {task.classes}]"
        )
    if parted and _is_head_of_encoder(module, task, logits):
        return Parted(module)
    return whole(name, task, module, last_linear(name, task, module), logits)


def whole(name: str, task: Task, module: nn.Module, place: str, logits: list[Any]) -> Whole:
    """The module with its head, at `place`, taken out. logits: its `outputs` before. Raises
    UserError where they are no longer the same."""
    model = Whole.cut(module, place)
    try:
        found = outputs(model, model, task)
    except Exception as error:  # it ran while the layer was there
        told = (
            f"its forward uses its last linear layer {place!r} other than by calling it at the end"
        )
        raise UserError(f"model {name!r}: {told} ({brief(error)})") from None
    if model.last.out_features != task.classes or not all(map(same, found, logits)):
        raise UserError(
            f"model {name!r}: its forward gives something else than its last linear layer,"
            f" {place!r}, on what comes before: it must end with that layer's logits"
        )
    return model


def last_linear(name: str, task: Task, module: nn.Module) -> str:
    """The dotted name of the linear layer that runs last in the module's forward. Raises UserError
    where none does."""
    ran: list[str] = []
    handles = [
        layer.register_forward_hook(lambda *_, place=place: ran.append(place))
        for place, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        outputs(module, module, task)
    finally:
        for handle in handles:
            handle.remove()
    if not ran:
        raise UserError(
            f"model {name!r}: no nn.Linear runs in its forward; the last one is its head, which a"
            f" client model needs"
        )
    return ran[-1]


def outputs(function: Callable[[Tensor], Any], module: nn.Module, task: Task) -> list[Any]:
    """What `function` gives for two random inputs while `module` is in evaluation and in training
    mode; the module stays as it is."""
    inputs = task.random(2, torch.Generator().manual_seed(0))
    found = []
    with _untouched(module), torch.no_grad():
        for training in (False, True):
            module.train(training)
            with seeded(0):  # two that draw the same, as dropout does, give the same
                found.append(function(inputs))
    return found


def same(left: Any, right: Any, rtol: float = 1e-4, atol: float = 1e-5) -> bool:
    """Whether two outputs are one, except for rounding."""
    return (
        isinstance(left, Tensor)
        and isinstance(right, Tensor)
        and left.shape == right.shape
        and torch.allclose(left, right, rtol, atol, equal_nan=True)
    )


def _shape(value: object) -> list[int] | str:
    """A tensor's shape, or what else it is."""
    return list(value.shape) if isinstance(value, Tensor) else kind(value)


@contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Puts back what a forward may change: modes, tensors, and what modules hold besides."""
    modes = {part: part.training for part in module.modules()}
    held = {id(one): (one, copied) for one, copied in _held(module, set())}
    try:
        yield
    finally:
        for one, copied in held.values():
            _put_back(one, copied)
        for part, mode in modes.items():
            part.training = mode


def _held(value: Any, seen: set[int]) -> Iterator[tuple[Any, Any]]:
    """Each tensor, array and container in a value, with a copy; of modules in their attributes."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        if not is_lazy(value):
            yield value, value.detach().clone()
    elif isinstance(value, np.ndarray | list | set | deque):
        yield value, copy(value)
    elif isinstance(value, dict):
        yield value, dict(value)
    if isinstance(value, nn.Module):
        value = vars(value)
        yield value, dict(value)
    if isinstance(value, dict):
        value = value.values()
    if not isinstance(value, str | bytes | Tensor | np.ndarray) and isinstance(value, Collection):
        for inner in value:
            yield from _held(inner, seen)


def _put_back(one: Any, copied: Any) -> None:
    """A tensor, an array or a container as it was."""
    if isinstance(one, Tensor):
        with torch.no_grad():
            one.copy_(copied)
    elif isinstance(one, np.ndarray):
        one[...] = copied
    else:
        one.clear()
        if isinstance(one, list | deque):
            one.extend(copied)
        else:
            one.update(copied)


def _complete(module: nn.Module, function: Callable[[Tensor], Any], task: Task) -> None:
    """Runs a module of which parameters are made by its first forward, as those of lazy layers:
    they are then drawn as the others are."""
    inputs = task.random(2, torch.Generator().manual_seed(0))
    late = any(map(is_lazy, (*module.parameters(), *module.buffers())))
    if not late:
        before = {name for name, _ in module.named_parameters()}
        with _untouched(module), generators_kept(), torch.no_grad():
            module.eval()
            function(inputs)
            late = {name for name, _ in module.named_parameters()} != before
    if late:
        with torch.no_grad():
            module.eval()
            function(inputs)
            module.train()


def _check_still(name: str, model: nn.Module, task: Task) -> None:
    """Raises UserError where two evaluations of the same inputs differ."""
    with _untouched(model), torch.no_grad():
        model.eval()
        for n, times in (2, 2), (_INPUTS, _TIMES):
            inputs, found = task.random(n, torch.Generator().manual_seed(0)), []
            for seed in range(times):
                with seeded(seed):
                    before = generators()
                    found.append(model(inputs))
                    drew = generators() != before
            exact = {"rtol": 0.0, "atol": 0.0} if drew else {}
            tensors = isinstance(found[0], Tensor)  # others are refused as such
            if tensors and not all(same(found[0], other, **exact) for other in found):
                raise UserError(
                    f"model {name!r}: two evaluations of the same inputs differ: its forward draws"
                    " numbers or changes itself; allowed in training alone (self.training)"
                )
            if not drew:
                return


def _without(name: str, task: Task, module: nn.Module) -> Parted:
    """Raises UserError unless the encoder, in evaluation mode, gives what the head takes, and the
    head a logit for each class."""
    head: nn.Linear = module.head  # type: ignore[assignment]
    with _untouched(module), torch.no_grad():
        representation = module.eval().encoder(task.blank(2))  # type: ignore[operator]
        if not isinstance(representation, Tensor):
            raise UserError(
                f"model {name!r}: the encoder gives {kind(representation)}, expected a tensor"
                f" [{task.kind}, width]"
            )
        if (found := _shape(representation)) != [2, head.in_features]:
            raise UserError(
                f"model {name!r}: the encoder gives {found} for 2 {task.kind}, its head takes [2,"
                f" {head.in_features}]"
            )
        if head.out_features != task.classes:
            raise UserError(
                f"model {name!r}: its head gives {head.out_features} logits, the dataset has"
                f" {task.classes} classes"
            )
        head(representation)
    return Parted(module)


def _is_head_of_encoder(module: nn.Module, task: Task, logits: list[Any]) -> bool:
    """Whether `forward` is head(encoder(x)): then the two are the parts, by their names."""
    try:
        found = outputs(lambda inputs: module.head(module.encoder(inputs)), module, task)  # type: ignore[operator]
    # an encoder that cannot be called so is another thing than we take it for, and forward alone
    # counts
    except Exception:
        return False
    return all(map(same, found, logits))
