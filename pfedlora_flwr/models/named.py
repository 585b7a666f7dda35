"""Models of timm and torchvision by name: `timm:NAME`, `timm:NAME:pretrained`, `timm:NAME:weights=FILE`, and torchvision's likewise.

The libraries are imported when a model of theirs is built, not before: it takes them a second or two.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import nn

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import absolute
from pfedlora_flwr.models import weights
from pfedlora_flwr.models.own import Whole, last_linear, outputs, whole
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import seeded

LIBRARIES = ("timm", "torchvision")
_FILE = "weights="
_NEAR = 4
_LONGEST = 300
_RANDOM: ContextVar[bool] = ContextVar("_RANDOM", default=False)


@dataclass(frozen=True)
class Named:
    """A model's name in its parts. weights: empty for random ones, `pretrained`, or `weights=FILE`."""

    library: str
    architecture: str
    weights: str

    def __str__(self) -> str:
        return ":".join(filter(None, [self.library, self.architecture, self.weights]))

    @property
    def file(self) -> str:
        """The FILE of `weights=FILE`; empty where there is none."""
        return self.weights.removeprefix(_FILE) if self.weights.startswith(_FILE) else ""


def is_library(name: str) -> bool:
    """Whether a model's name is one of these libraries'."""
    return name.partition(":")[0] in LIBRARIES


def parse(name: str) -> Named | None:
    """The parts of a library model's name; None for another's. Raises UserError for weights of another form."""
    if not is_library(name):
        return None
    library, _, rest = name.partition(":")
    found = Named(library, *rest.partition(":")[::2])
    if found.weights not in ("", "pretrained") and not found.file:
        forms = ", ".join(
            f"{library}:{found.architecture}{end}" for end in ("", ":pretrained", f":{_FILE}FILE")
        )
        raise UserError(f"models names {name!r}; allowed: {forms}")
    return found


def located(name: str) -> str:
    """The name with its file, where it has one, made absolute."""
    found = parse(name)
    return (
        str(Named(found.library, found.architecture, f"{_FILE}{absolute(found.file)}"))
        if found and found.file
        else name
    )


def without_path(name: str) -> str:
    """The name for people who have not this machine: of a file its last name alone."""
    found = parse(name)
    return (
        str(Named(found.library, found.architecture, f"{_FILE}{Path(found.file).name}"))
        if found and found.file
        else name
    )


@contextmanager
def random_weights() -> Iterator[None]:
    """Within it no weights are looked up: they will be overwritten, and need not be where this runs."""
    token = _RANDOM.set(True)
    try:
        yield
    finally:
        _RANDOM.reset(token)


def build(named: Named, task: Task) -> Whole:
    """The library's model with its head taken out, initialised from torch's global generator. Raises UserError where there is none."""
    if task.kind != "images":
        raise UserError(
            f"model {str(named)!r} is for images, and the inputs are {task.kind} {list(task.shape)}"
        )
    _library(named)
    state = {} if _RANDOM.get() or not named.weights else _state(named)
    try:
        module = _BUILD[named.library](named, task, state)
        return Whole(module, _layout(Named(named.library, named.architecture, ""), task).head)
    except UserError:
        raise
    except Exception as error:  # the library's own, which knows best: a size that it does not take, weights that do not fit
        raise UserError(
            f"model {str(named)!r} for images {list(task.shape)}: {_in_a_line(error)}"
        ) from None


@lru_cache(maxsize=256)
def _layout(named: Named, task: Task) -> weights.Layout:
    """What a model's weights look like, found once. Its head: the classifier by timm's interface, with torchvision the last linear."""
    with seeded(0):  # what the caller draws must not depend on whether this is the first call
        module = _BUILD[named.library](named, task, {})
    logits = outputs(module, module, task)
    if named.library == "timm":
        head: object = module.get_classifier()  # type: ignore[operator]
        if not isinstance(head, nn.Linear):
            raise UserError(
                f"model {str(named)!r}: its classifier is a {type(head).__name__}, and one linear layer is needed"
            )
        place = next(place for place, layer in module.named_modules() if layer is head)
    else:
        place = last_linear(str(named), task, module)
    layout = weights.Layout.of(module, place)
    whole(str(named), task, module, place, logits)
    return layout


def _timm(named: Named, task: Task, state: weights.State) -> nn.Module:
    """timm's own loading of weights: it fits the first layer to the channels, and leaves out a classifier of other classes."""
    timm: Any = _library(named)
    channels, height, width = task.shape
    about = timm.get_pretrained_cfg(named.architecture)
    sized = {"img_size": (height, width)} if about and about.fixed_input_size else {}
    if not state:
        return timm.create_model(
            named.architecture, num_classes=task.classes, in_chans=channels, **sized
        )
    layout = _layout(Named("timm", named.architecture, ""), task)
    weights.check(
        str(named), state, layout, strict=bool(named.file)
    )  # before timm, which names every tensor that does not fit
    classes, first = (state.get(f"{layer}.weight") for layer in (layout.head, about.first_conv))
    told = {
        "state_dict": dict(state),  # from which timm takes out what does not fit
        "num_classes": 0 if classes is None else len(classes),
        "label_offset": 0,
        "input_size": (channels if first is None else first.shape[1], *about.input_size[1:]),
    }
    module = timm.create_model(
        named.architecture,
        pretrained=True,
        pretrained_cfg_overlay=told,
        num_classes=task.classes,
        in_chans=channels,
        **sized,
    )
    module.pretrained_cfg.pop("state_dict", None)
    return module


def _torchvision(named: Named, task: Task, state: weights.State) -> nn.Module:
    models: Any = _library(named)
    if task.shape[0] != 3:
        raise UserError(
            f"model {str(named)!r} is for images of 3 channels, and they have {task.shape[0]}; timm's models take any number"
        )
    module: nn.Module = models.get_model(named.architecture, weights=None, num_classes=task.classes)
    if state:
        layout = _layout(Named("torchvision", named.architecture, ""), task)
        weights.load(str(named), module, state, layout, strict=bool(named.file))
    return module


_BUILD: dict[str, Callable[[Named, Task, weights.State], nn.Module]] = {
    "timm": _timm,
    "torchvision": _torchvision,
}


def _library(named: Named) -> Any:
    """The library's module of models. Raises UserError where it is not installed or has no such model."""
    try:
        library: Any = importlib.import_module(
            "timm" if named.library == "timm" else "torchvision.models"
        )
    except ImportError:
        raise UserError(
            f"model {str(named)!r} needs {named.library}, which is not installed: pip install {named.library}"
        ) from None
    known = (
        library.is_model
        if named.library == "timm"
        else library.list_models(module=library).__contains__
    )
    if not known(named.architecture):
        names = library.list_models(**({} if named.library == "timm" else {"module": library}))
        near = difflib.get_close_matches(named.architecture, names, _NEAR) or names[:_NEAR]
        raise UserError(
            f"model {str(named)!r}: {named.library} has no {named.architecture!r}; near names: {', '.join(near)}"
        )
    return library


def _state(named: Named) -> weights.State:
    """The weights that a name asks for."""
    if named.file:
        return weights.read(Path(named.file), str(named))
    library = _library(named)
    try:
        if named.library == "timm":
            about = library.get_pretrained_cfg(named.architecture)
            source = (
                (about.hf_hub_id or "", about.hf_hub_filename or "", about.url or "")
                if about
                else ("", "", "")
            )
        else:
            source = ("", "", library.get_model_weights(named.architecture).DEFAULT.url)
    except (RuntimeError, AttributeError, ValueError) as error:
        raise UserError(f"model {str(named)!r}: {_in_a_line(error)}") from None
    return weights.read(weights.fetched(str(named), *source), str(named))


def _in_a_line(error: BaseException) -> str:
    """What a library raised, which it may say in several lines."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}"
