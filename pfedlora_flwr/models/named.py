"""Models of timm and torchvision by name: `timm:NAME`, `timm:NAME:pretrained`,
`timm:NAME:weights=FILE`, and torchvision's likewise.

The libraries are imported when a model of theirs is built, not before: it takes them a second or
two."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import nn

from pfedlora_flwr.errors import UserError, needed, permissions
from pfedlora_flwr.files import absolute
from pfedlora_flwr.models import text, weights
from pfedlora_flwr.models.own import Whole, last_linear, outputs, whole
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.kinds import IMAGES

LIBRARIES = ("timm", "torchvision")
RANDOM_WEIGHTS = (
    "its weights are random: `:pretrained` or `:weights=FILE` after its name loads some"
)
_FILE = "weights="
_NEAR = 4
_LONGEST = 300
_RANDOM: ContextVar[bool | None] = ContextVar("_RANDOM", default=None)
"""Inside `random_weights`: its `base`."""


@dataclass(frozen=True)
class Named:
    """A model's name in its parts. weights: empty for random ones, `pretrained`, or
    `weights=FILE`."""

    library: str
    architecture: str
    weights: str

    def __str__(self) -> str:
        return ":".join(filter(None, [self.library, self.architecture, self.weights]))

    @property
    def file(self) -> str:
        """The FILE of `weights=FILE`; empty if there is none."""
        return self.weights.removeprefix(_FILE) if self.weights.startswith(_FILE) else ""


def is_library(name: str) -> bool:
    """Whether a model's name is one of these libraries'."""
    return name.partition(":")[0] in LIBRARIES


def parse(name: str) -> Named | None:
    """The parts of a library model's name; None for another's. Raises UserError for weights of
    another form."""
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


def random_encoders(names: Iterable[ModelSpec]) -> list[str]:
    """Those of the models that begin with random weights, where a library has others; each once,
    whatever the keys say of it."""
    bare = dict.fromkeys(one.name for one in names)
    return [name for name in bare if (named := parse(name)) and not named.weights]


def located(name: str) -> str:
    """The name with its file, where it has one, made absolute."""
    found = parse(name)
    if found and found.file:
        return str(Named(found.library, found.architecture, f"{_FILE}{absolute(found.file)}"))
    return name


def without_path(said: ModelSpec) -> str:
    """The name for people who have not this machine: of a file its last name alone."""
    bare, found = said.name, parse(said.name)
    if text.is_text(bare):
        bare = text.without_path(bare)
    if found and found.file:
        bare = str(Named(found.library, found.architecture, f"{_FILE}{Path(found.file).name}"))
    begun, colon, folder = said.lora_init.partition(":")
    kind, mark, file = said.representation.partition(":")
    init, representation = f"{begun}{colon}{Path(folder).name}", f"{kind}{mark}{Path(file).name}"
    return str(replace(said, name=bare, lora_init=init, representation=representation))


@contextmanager
def random_weights(*, base: bool = True) -> Iterator[None]:
    """Within it no weights are looked up that will be overwritten: they need not be where this
    runs. Those of a frozen base are not overwritten (`kept.load_kept`).

    base: whether these are looked up all the same; if not, models are built to be looked at."""
    token = _RANDOM.set(base)
    try:
        yield
    finally:
        _RANDOM.reset(token)


def build(named: Named, task: Task, side: int | None = None) -> Whole:
    """The library's model with its head taken out, initialised from torch's global generator.
    side: as in Whole. Raises UserError if there is none."""
    state = {} if overwritten() or not named.weights else state_of(named)
    module, head = library_model(named, sized(task, side), state)
    return Whole.cut(module, head, side)


def sized(task: Task, side: int | None) -> Task:
    """The Task of a model that resizes images to `side`."""
    return replace(task, shape=(task.shape[0], side, side)) if side else task


def library_model(named: Named, task: Task, state: weights.State) -> tuple[nn.Module, str]:
    """The library's model with these weights, or random ones where they are empty; and where its
    last linear layer is. Raises UserError."""
    if task.kind != IMAGES:
        raise UserError(
            f"model {str(named)!r} is for images, and the inputs are {task.kind} {list(task.shape)}"
        )
    _library(named)
    try:
        module = _BUILD[named.library](named, task, state)
        return module, layout(Named(named.library, named.architecture, ""), task).head
    except UserError:
        raise
    # the library's own, which knows best: a size that it does not take, weights that do not fit
    except Exception as error:
        raise UserError(
            f"model {str(named)!r} for images {list(task.shape)}: {_in_a_line(error)}"
        ) from None


def overwritten() -> bool:
    """Whether models are built now whose trained part will be replaced."""
    return _RANDOM.get() is not None


def looked_at() -> bool:
    """Whether models are built now to be looked at, and a frozen base may be any."""
    return _RANDOM.get() is False


@dataclass(frozen=True)
class Made:
    """How a library's weights of a model were made: for images of this shape, (channels, height,
    width), in [0, 1] and normalised by mean and std; of how many classes; and under which licence,
    empty where the library does not say."""

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int
    licence: str


def made_with(name: str) -> Made | None:
    """How a library model's weights were made; None for other models, and for one without weights.
    Of a file that an export of this package wrote, mean and std are those that it tells."""
    found = parse(name)
    of_library = made(found) if found and found.weights else None
    if of_library is None or found is None or not found.file:
        return of_library
    constants = weights.constants_of(file_of(found))
    return replace(of_library, mean=constants[0], std=constants[1]) if constants else of_library


@lru_cache(maxsize=256)
def made(named: Named) -> Made | None:
    """How the library's weights of this architecture were made; None where it has none."""
    library = _library(named)
    if named.library == "timm":
        cfg = library.get_pretrained_cfg(named.architecture)
        if not cfg or not cfg.mean:
            return None
        licence = (cfg.license or "").replace("apache", "Apache")
        return Made(cfg.input_size, tuple(cfg.mean), tuple(cfg.std), cfg.num_classes, licence)
    try:
        weights_ = library.get_model_weights(named.architecture).DEFAULT
    except (ValueError, AttributeError):  # a model that the library has no weights of
        return None
    seen, classes = weights_.transforms(), len(weights_.meta["categories"])
    side = seen.crop_size[0]
    return Made((3, side, side), tuple(seen.mean), tuple(seen.std), classes, "")


@lru_cache(maxsize=256)
def layout(named: Named, task: Task) -> weights.Layout:
    """What a model's weights look like, found once. Its head: the classifier by timm's interface,
    with torchvision the last linear."""
    with seeded(0):  # what the caller draws must not depend on whether this is the first call
        module = _BUILD[named.library](named, task, {})
    logits = outputs(module, module, task)
    if named.library == "timm":
        head: object = module.get_classifier()  # type: ignore[operator]
        if not isinstance(head, nn.Linear):
            raise UserError(
                f"model {str(named)!r}: its classifier is a {type(head).__name__}, and one linear"
                " layer is needed"
            )
        place = next(place for place, layer in module.named_modules() if layer is head)
    else:
        place = last_linear(str(named), task, module)
    layout = weights.Layout.of(module, place)
    whole(str(named), task, module, place, logits)
    return layout


def _timm(named: Named, task: Task, state: weights.State) -> nn.Module:
    """timm's own loading of weights: it fits the first layer to the channels, and leaves out a
    classifier of other classes."""
    timm: Any = _library(named)
    channels, height, width = task.shape
    about = timm.get_pretrained_cfg(named.architecture)
    own: dict[str, Any] = {"num_classes": task.classes, "in_chans": channels}
    if about and about.fixed_input_size:
        own["img_size"] = height, width
    if not state:
        return timm.create_model(named.architecture, **own)
    found = layout(Named("timm", named.architecture, ""), task)
    # before timm, which names every tensor that does not fit
    weights.check(str(named), state, found, strict=bool(named.file))
    classes, first = (state.get(f"{layer}.weight") for layer in (found.head, about.first_conv))
    told = {
        "state_dict": dict(state),  # from which timm takes out what does not fit
        "num_classes": 0 if classes is None else len(classes),
        "label_offset": 0,
        "input_size": (channels if first is None else first.shape[1], *about.input_size[1:]),
    }
    own |= {"pretrained": True, "pretrained_cfg_overlay": told}
    module = timm.create_model(named.architecture, **own)
    module.pretrained_cfg.pop("state_dict", None)
    return module


def _torchvision(named: Named, task: Task, state: weights.State) -> nn.Module:
    models: Any = _library(named)
    if task.shape[0] != 3:
        raise UserError(
            f"model {str(named)!r} is for images of 3 channels, and they have {task.shape[0]};"
            " timm's models take any number"
        )
    module: nn.Module = models.get_model(named.architecture, weights=None, num_classes=task.classes)
    if state:
        found = layout(Named("torchvision", named.architecture, ""), task)
        weights.load(str(named), module, state, found, strict=bool(named.file))
    return module


_BUILD: dict[str, Callable[[Named, Task, weights.State], nn.Module]] = {
    "timm": _timm,
    "torchvision": _torchvision,
}


def _library(named: Named) -> Any:
    """The library's module of models. Raises UserError if it is not installed or has no such
    model."""
    library = needed(
        "timm" if named.library == "timm" else "torchvision.models",
        f"model {str(named)!r} needs {named.library}",
        named.library,
    )
    if named.library == "timm":
        known = library.is_model
    else:
        known = library.list_models(module=library).__contains__
    if not known(named.architecture):
        names = library.list_models(**({} if named.library == "timm" else {"module": library}))
        near = difflib.get_close_matches(named.architecture, names, _NEAR)
        raise UserError(
            f"model {str(named)!r}: {named.library} has no {named.architecture!r};"
            + (f" near names: {', '.join(near)}" if near else f" it has {len(names)} others")
        )
    return library


def state_of(named: Named) -> weights.State:
    """The weights that a name asks for. Raises UserError."""
    return weights.read(file_of(named), str(named))


def check_allowed(named: Named) -> None:
    """Asks whether a run may name these weights here. Raises NotAllowed."""
    if named.file:
        permissions.check_file("models", named.file, permissions.WEIGHTS)
    elif named.weights:
        permissions.check_download("model", str(named))


def file_of(named: Named, way: str = "") -> Path:
    """The file of the weights that a name asks for; the library's own are downloaded where they are
    not in its cache. Raises UserError. way: what else a user can do who cannot download them."""
    check_allowed(named)
    if named.file:
        return Path(named.file)
    library = _library(named)
    try:
        if named.library == "timm":
            about = library.get_pretrained_cfg(named.architecture)
            places = ("hf_hub_id", "hf_hub_filename", "url")
            source = [getattr(about, place, None) or "" for place in places]
        else:
            source = ["", "", library.get_model_weights(named.architecture).DEFAULT.url]
    except (RuntimeError, AttributeError, ValueError) as error:
        raise UserError(f"model {str(named)!r}: {_in_a_line(error)}") from None
    repository, filename, url = source
    return weights.fetched(str(named), repository, filename, url, way)


def _in_a_line(error: BaseException) -> str:
    """What a library raised, which it may say in several lines."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}"
