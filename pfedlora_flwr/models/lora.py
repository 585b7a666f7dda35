"""LoRA inside a frozen model, by Hugging Face's peft: its layers, its names, its files.

peft is imported when such a model is built, not before: it takes a second or two."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from pfedlora_flwr.errors import UserError, first_line, needed, permissions, some
from pfedlora_flwr.files import absolute, write_atomically
from pfedlora_flwr.models.linear import Linear
from pfedlora_flwr.models.lora_layers import FIRST, adapted_layers, altered, draw, gated, inject
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.named import overwritten
from pfedlora_flwr.models.neck import Necked
from pfedlora_flwr.models.own import Parted, Whole, resized
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.models.text import TextModel

FOLDER = "folder:"
_AUTO = (("qkv",), ("query", "value"), ("q_lin", "v_lin"), ("q_proj", "v_proj"))
_AUTO_CONVOLUTIONS = ("conv_pw", "conv_pwl")
_LAST_STAGE = re.compile(r"(.*\.)?layer4\.\d+\.conv\d")
"""Of a ResNet, by timm's and torchvision's names."""
_KEEP_BASE = (True, False, "gaussian", "eva", "orthogonal")
"""peft's ways to begin that leave the base as it is."""
_SAVED = "base_model.model."
"""What the names in peft's files begin with."""
_PRODUCTS: tuple[Callable[..., Tensor], ...] = (
    nn.Linear.forward,
    Linear.forward,
    nn.Conv1d.forward,
    nn.Conv2d.forward,
)
"""What layers compute that are linear in their weights."""
_MATRICES = ("lora_A", "lora_B")
FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What peft saves, and `write`."""
HEAD = "head.safetensors"
"""The head of a text model, `weight` and `bias`, beside them."""
_NAMED = 8


def located(init: str) -> str:
    """The key `lora.init` with its folder, where it has one, made absolute."""
    return f"{FOLDER}{absolute(init.removeprefix(FOLDER))}" if init.startswith(FOLDER) else init


def adapt(model: ClientModel, spec: ModelSpec) -> None:
    """Puts LoRA into the module of a client model that is frozen.

    Its first matrices are drawn from torch's global generator and its second are 0, so that the
    model computes what it did; or both are read from a folder. Raises UserError if a layer
    cannot take it, and where peft is missing.
    """
    name, init = spec.name, spec.lora_init
    if not isinstance(model, Whole | Parted):
        raise UserError(
            f"model {name!r} begins at random, and LoRA is for models that others trained; allowed"
            " with train=lora: timm:NAME:pretrained, timm:NAME:weights=FILE, torchvision's, and"
            " package.module:Class"
        )
    peft = _peft(name)
    if model.base:
        model.module = _twin(model.module)
    config = peft.LoraConfig(
        r=spec.lora_rank,
        lora_alpha=spec.alpha,
        target_modules=_targets(name, model.module, _head(model), spec.lora_targets),
        lora_dropout=spec.lora_dropout,
    )
    inject(config, model.module, FIRST)
    draw(model.module, init)
    if init.startswith(FOLDER) and not overwritten():
        _read(model, spec, Path(init.removeprefix(FOLDER)), peft)
    model.adapted = (model.module,)
    model.awake = tuple(layer.lora_dropout for layer in adapted_layers(model.module).values())


def without(model: ClientModel, *, merge: bool) -> ClientModel:
    """The model itself where LoRA is not in it; else a copy with LoRA in its weights, or, unless it
    is to be merged, left out. Raises UserError where gates weigh it and it is to be merged."""
    if not adapted_layers(model):
        return model
    if merge and gated(model):
        raise UserError(
            "gates weigh LoRA by each input in this model, so it cannot be merged into its weights;"
            " formats that hold it: onnx, torch-export"
        )
    model = copy.deepcopy(model)
    for place, layer in adapted_layers(model).items():
        if merge:
            layer.merge(safe_merge=True)
        model.set_submodule(place, layer.get_base_layer())
    for part in model.modules():
        if isinstance(part, ClientModel):
            for module in part.adapted:
                del module.peft_config
            part.given, part.adapted, part.awake, part.still = frozenset(), (), (), ()
    return model


def program(model: ClientModel) -> ClientModel:
    """The model as one that computes the same alone: LoRA merged into the weights, or beside them
    where gates weigh it."""
    return model if gated(model) else without(model, merge=True)


def description(model: ClientModel) -> str:
    """LoRA in the model, in words; empty if there is none."""
    for part in model.modules():
        for module in part.adapted if isinstance(part, ClientModel) else ():
            config = _config(module)
            targets = some(sorted(config.target_modules), _NAMED)
            return f"rank {config.r}, alpha {config.lora_alpha:g}, in {targets}"
    return ""


def files(model: ClientModel) -> tuple[str, ...]:
    """The names of the files that `write` leaves."""
    return (*FILES, HEAD) if isinstance(_inner(model), TextModel) else FILES


def check_one(model: ClientModel) -> None:
    """Raises UserError if there is no LoRA, or more in the model than one, its base and its
    head."""
    inner = _inner(model)
    if not adapted_layers(inner.module):
        raise UserError(f"format peft is for LoRA, and {model.description} has none: train=lora")
    if why := altered(inner):
        others = "onnx or torch-export" if gated(inner) else "safetensors"
        raise UserError(f"format peft is for one LoRA beside its base, and {why}: give {others}")


def write(model: ClientModel, folder: Path, metadata: Mapping[str, str]) -> None:
    """Writes LoRA and the head as `PeftModel.from_pretrained` reads them; a text model's head goes
    to a file of its own, since its library has none for it. Raises UserError as `check_one`."""
    check_one(model)
    inner = _inner(model)
    found = adapted_layers(inner.module)
    place, saved = _head(inner), dict(_as_one(model).state_dict())
    config = copy.deepcopy(_config(inner.module))
    config.base_model_name_or_path, config.inference_mode = inner.description, True
    config.target_modules = {t.removeprefix(_prefix(inner)) for t in config.target_modules}
    if isinstance(inner, TextModel):
        _save(folder / HEAD, saved, metadata)
        saved = {}
    else:
        saved = {f"{_SAVED}{place}.{name}": tensor for name, tensor in saved.items()}
        config.modules_to_save = [place]
    for at, layer in found.items():
        for part in _MATRICES:
            tensor = getattr(layer, part)[FIRST].weight.detach()
            saved[f"{_SAVED}{at.removeprefix(_prefix(inner))}.{part}.weight"] = tensor
    told = {
        key: sorted(value) if isinstance(value, set) else value
        for key, value in config.to_dict().items()
    }
    write_atomically(folder / FILES[0], f"{json.dumps(told, indent=2, sort_keys=True)}\n".encode())
    _save(folder / FILES[1], saved, metadata)


def loaded(model: ClientModel, folder: Path) -> Callable[[Tensor], Tensor]:
    """A client model's base with what `write` left in `folder`, as peft puts it in: inputs to
    logits."""
    inner = _inner(model)
    plain, head = _inner(without(model, merge=False)), _as_one(model)
    peft = _peft(inner.description)
    if isinstance(plain, TextModel):
        encoder: Any = plain.module
        encoder.model = peft.PeftModel.from_pretrained(encoder.model, folder)
        head.load_state_dict(safetensors.torch.load_file(folder / HEAD))
        return lambda tokens: head(encoder.eval()(tokens))
    plain.module.set_submodule(_head(inner), head)
    module = peft.PeftModel.from_pretrained(plain.module, folder).eval()
    side = inner.side if isinstance(inner, Whole) else None
    return lambda inputs: module(inputs if side is None else resized(inputs, side))


def _save(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    held = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(file, safetensors.torch.save(held, {"format": "pt", **metadata}))


def _prefix(model: Whole | Parted) -> str:
    """What stands before the library's own names in the module that LoRA is in."""
    return "model." if isinstance(model, TextModel) else ""


def _config(module: nn.Module) -> Any:
    """peft's LoraConfig of a module that LoRA is in."""
    of_adapters: Any = module.peft_config
    return of_adapters[FIRST]


def _inner(model: ClientModel) -> Whole | Parted:
    """The model that a library's or user's module was made. Raises UserError if there are
    several."""
    inner = model.model if isinstance(model, Necked) else model
    text = isinstance(inner, TextModel)
    if not isinstance(inner, Whole | Parted) or not (text or _head(inner)):
        raise UserError(
            f"format peft is for LoRA in one model, and this is {model.description}: give"
            " format=safetensors"
        )
    return inner


def _as_one(model: ClientModel) -> nn.Linear:
    """A linear layer that computes what the neck, if there is one, and the head do."""
    last = model.last_layer()
    weight, bias = last.weight.detach(), None if last.bias is None else last.bias.detach()
    if isinstance(model, Necked):
        bias = model.last.bias.detach() + weight @ model.neck.bias.detach()
        weight = weight @ model.neck.weight.detach()
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    head.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return head


def _peft(name: str) -> Any:
    return needed("peft", f"model {name!r}: train=lora needs peft", "'pfedlora-flwr[lora]'")


def _twin(module: nn.Module) -> nn.Module:
    """The module once more, of the same tensors: its parts can be replaced, and nothing is there
    twice."""
    tensors = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


def _head(model: Whole | Parted) -> str:
    """Where in the library's module the head is, or was."""
    return (model.place or "") if isinstance(model, Whole) else "head"


def _targets(name: str, module: nn.Module, head: str, wanted: tuple[str, ...]) -> list[str]:
    """The names by which peft finds the layers. Raises UserError if one is none, or none that
    can take LoRA."""
    layers = {place: layer for place, layer in module.named_modules() if place and place != head}
    able = {place: layer for place, layer in layers.items() if not _unable(layer)}
    if wanted == ("all-linear",):
        wanted = tuple(place for place, layer in able.items() if isinstance(layer, nn.Linear))
    if not wanted:
        wanted = _by_architecture(able)
    if not wanted:
        raise UserError(
            f"model {name!r}: lora.targets is auto, which knows the layers of ViTs, BERTs,"
            f" EfficientNets and ResNets; name some of this one's: {_ends(able)}"
        )
    for end in wanted:
        if _matches(head, end):
            raise UserError(
                f"model {name!r}: lora.targets names {end!r}, its head, which is trained itself"
            )
        found = [place for place in layers if _matches(place, end)]
        if not found:
            raise UserError(
                f"model {name!r}: lora.targets names {end!r}, with which no layer's name ends;"
                f" those that take LoRA end with {_ends(able)}"
            )
        for place in found:
            if why := _unable(layers[place]):
                raise UserError(f"model {name!r}: lora.targets names {end!r}, and {place} {why}")
    return list(wanted)


def _by_architecture(able: Mapping[str, nn.Module]) -> tuple[str, ...]:
    def has(end: str) -> bool:
        return any(_matches(place, end) for place in able)

    for ends in _AUTO:
        if all(map(has, ends)):
            return ends
    if has(_AUTO_CONVOLUTIONS[1]):
        return tuple(filter(has, _AUTO_CONVOLUTIONS))
    return tuple(
        place
        for place, layer in able.items()
        if _LAST_STAGE.fullmatch(place) and getattr(layer, "kernel_size", None) == (3, 3)
    )


def _matches(place: str, end: str) -> bool:
    """peft's rule."""
    return place == end or place.endswith(f".{end}")


def _ends(able: Mapping[str, nn.Module]) -> str:
    """The last parts of the layers' names; where these are numbers, the names."""
    last = ((place, place.rpartition(".")[2]) for place in able)
    return some([*dict.fromkeys(place if end.isdigit() else end for place, end in last)], _NAMED)


def _unable(layer: nn.Module) -> str:
    """Why a layer cannot take LoRA; empty where it can."""
    kind = type(layer)
    if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
        return f"is a {kind.__name__}: LoRA is for linear and convolutional layers"
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        return "is not called: PyTorch's attention takes its weights alone"
    # timm's Conv2dSame pads its input and is a convolution
    if kind.forward not in _PRODUCTS and kind.__name__ != "Conv2dSame":
        return f"is a {kind.__name__}, which does not compute with its weights as they are"
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        if layer.groups > 1:
            what = "depthwise" if layer.groups == layer.in_channels else "grouped"
            return f"is {what} ({layer.groups} groups): LoRA could not be merged into it"
        if layer.padding_mode != "zeros" or {*layer.dilation} != {1}:
            return "is dilated, or padded by other than zeros, which peft does not take over"
    return ""


def _read(model: Whole | Parted, spec: ModelSpec, folder: Path, peft: Any) -> None:
    """Sets LoRA, and the head where it is for the same classes and no neck stands before it, from
    what peft saved. Raises UserError if this is another LoRA."""
    permissions.check_file("lora.init", str(folder), permissions.WEIGHTS)
    try:
        about = peft.LoraConfig.from_pretrained(folder)
        saved = safetensors.torch.load_file(folder / FILES[1])
    except Exception as error:  # what is in the folder is somebody's
        said = first_line(str(error)) or type(error).__name__
        raise UserError(f"lora.init is {FOLDER}{folder}, which peft did not save: {said}") from None
    if (begun := about.init_lora_weights) not in _KEEP_BASE:
        raise UserError(
            f"lora.init is {FOLDER}{folder}, which peft began by {begun!r}: that changes the base,"
            " too, and here the base stays as it is"
        )
    found = {f"{_prefix(model)}{key.removeprefix(_SAVED)}": tensor for key, tensor in saved.items()}
    scale = about.lora_alpha / (math.sqrt(about.r) if about.use_rslora else about.r)
    places = {part: f"{_head(model)}.{part}" for part in ("weight", "bias")}
    head = {part: found.pop(place) for part, place in places.items() if place in found}
    own = {
        f"{place}.{part}.weight": getattr(layer, part)[FIRST].weight
        for place, layer in adapted_layers(model.module).items()
        for part in _MATRICES
    }
    there = {place for place, _ in model.module.named_modules()}
    if other := sorted(key for key in found if key.partition(".lora_")[0] not in there):
        raise UserError(
            f"model {spec.name!r}: lora.init is {FOLDER}{folder}, which holds {other[0]}, for a"
            " layer that this model has not: it was saved of another model, or with a head of"
            " peft's own"
        )
    shapes = [{key: t.shape for key, t in tensors.items()} for tensors in (found, own)]
    if (
        shapes[0] != shapes[1]
        or about.alpha_pattern
        or not math.isclose(scale, spec.alpha / spec.lora_rank)
    ):
        raise UserError(
            f"model {spec.name!r}: lora.init is {FOLDER}{folder}, which holds LoRA of rank"
            f" {about.r}, alpha {about.lora_alpha:g}, {len(found)} tensors, and the keys say rank"
            f" {spec.lora_rank}, alpha {spec.alpha:g}, {len(own)} tensors: make lora.rank,"
            " lora.alpha and lora.targets equal"
        )
    for key, tensor in found.items():
        own[key].data.copy_(tensor)
    if isinstance(model, TextModel) and (folder / HEAD).exists():
        head = safetensors.torch.load_file(folder / HEAD)
    last = model.module.head if isinstance(model, Parted) else getattr(model, "last", None)
    if isinstance(last, nn.Linear) and {n: t.shape for n, t in last.state_dict().items()} == {
        n: t.shape for n, t in head.items()
    }:
        last.load_state_dict(head)
