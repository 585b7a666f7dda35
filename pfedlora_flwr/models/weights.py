"""Weights of models by name: from a file, or the library's own, downloaded once to its cache."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from pfedlora_flwr.deadline import within
from pfedlora_flwr.errors import UserError, first_line, some
from pfedlora_flwr.files import Stamp, from_json, stamp_of

logger = logging.getLogger(__name__)
State = dict[str, Tensor]
PATIENCE = 5.0
"""Seconds that a host has to answer in."""
_NAMED = 4
COUNTER = "num_batches_tracked"
_WITHIN = ("state_dict", "model", "state_dict_ema", "model_ema")
"""Where training programs put a model's tensors in what they save."""


def constants_of(file: Path) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and std of a model's inputs, which `pfedlora export` writes beside its tensors; None
    where the file tells none, or is not there."""
    try:
        return _constants_of(stamp_of(file))
    except OSError:
        return None


@lru_cache(maxsize=64)
def _constants_of(stamp: Stamp) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    try:
        with safetensors.safe_open(stamp[0], "pt") as stored:
            told = stored.metadata() or {}
        if not {"architecture", "preprocessing"} <= told.keys():
            return None  # not ours
        mean, std = (tuple(map(float, from_json(told[key]))) for key in ("mean", "std"))
        return mean, std
    except (OSError, safetensors.SafetensorError, ValueError, KeyError, TypeError):
        return None


def read(file: Path, name: str) -> State:
    """A model's tensors by name, from safetensors or from what torch saved, of which nothing is
    executed. Raises UserError, also for weights that are NaN or of integers."""
    try:
        found: Any = (
            safetensors.torch.load_file(file)
            if file.suffix == ".safetensors"
            else torch.load(file, "cpu", weights_only=True)
        )
    except OSError as error:
        raise UserError(
            f"model {name!r}: {file} cannot be read: {error.strerror or error}"
        ) from None
    except Exception as error:  # what is in the file is somebody's
        said = first_line(str(error))
        # torch advises to execute what is in the file
        advises = "weights only" in said.lower().replace("_", " ")
        slip = isinstance(error, (IndexError, KeyError))  # of an unpickler on what is no pickle
        told = f": {said}" if said and not (advises or slip) else ""
        raise UserError(
            f"model {name!r}: {file} holds no weights as safetensors or torch.save write them{told}"
        ) from None
    while isinstance(found, dict) and (
        inner := next((key for key in _WITHIN if isinstance(found.get(key), dict)), None)
    ):
        found = found[inner]
    if (
        not isinstance(found, dict)
        or not found
        or not all(isinstance(tensor, Tensor) for tensor in found.values())
    ):
        raise UserError(
            f"model {name!r}: {file} holds no tensors by name, as a model's state_dict has"
        )
    for key, tensor in found.items():
        real = tensor.is_floating_point()
        if not real and key.endswith("weight"):
            held = f"is of {str(tensor.dtype).removeprefix('torch.')}, as quantised weights are"
        elif real and tensor.float().isnan().any():
            held = "holds NaN"
        else:
            continue
        raise UserError(f"model {name!r}: {key} in {file} {held}; allowed: floating-point numbers")
    return found


@dataclass(frozen=True)
class Layout:
    """What a module's weights look like. head: the dotted name of its last layer. shapes: by name
    in its state_dict. derived: buffers that are in no state_dict, as older versions of a library
    still wrote them."""

    head: str
    shapes: Mapping[str, torch.Size]
    derived: frozenset[str]

    @classmethod
    def of(cls, module: nn.Module, head: str) -> Layout:
        shapes = {key: tensor.shape for key, tensor in module.state_dict().items()}
        return cls(
            head, shapes, frozenset(key for key, _ in module.named_buffers() if key not in shapes)
        )


def load(name: str, module: nn.Module, state: State, layout: Layout, *, strict: bool) -> None:
    """Loads `state`, except for a head of another number of classes. Raises UserError, or
    RuntimeError, where it is not this module's."""
    left_out = check(name, state, layout, strict=strict)
    own = module.state_dict()
    module.load_state_dict(
        own | {key: tensor for key, tensor in state.items() if key in own and key not in left_out}
    )


def check(name: str, state: State, layout: Layout, *, strict: bool) -> list[str]:
    """The tensors of the head that `state` has for other classes, which is said once.

    Raises UserError if a tensor of another layer is missing or, if `strict`, `state` has one
    that the module has not."""
    own, heads = layout.shapes, [f"{layout.head}.weight", f"{layout.head}.bias"]
    if missing := [
        key for key in own if key not in state and key not in heads and not key.endswith(COUNTER)
    ]:
        raise UserError(
            f"model {name!r}: its weights lack {len(missing)} of its {len(own)} tensors:"
            f" {some(missing, _NAMED)}"
        )
    known = {*own, *heads, *layout.derived}
    if strict and (
        foreign := [key for key in state if key not in known and not key.endswith(COUNTER)]
    ):
        raise UserError(
            f"model {name!r}: {len(foreign)} of the {len(state)} tensors in its weights are not its"
            f" own: {some(foreign, _NAMED)}"
        )
    left_out = [
        key for key in heads if key in own and (key not in state or state[key].shape != own[key])
    ]
    if left_out:
        _warn(
            f"model {name}: {', '.join(left_out)} of its weights are for other classes, and left"
            " out: its head begins at random"
        )
    return left_out


def fetched(name: str, repository: str, filename: str, url: str, way: str = "") -> Path:
    """The file of a library's own weights, from its cache or downloaded. Raises UserError if it
    is in neither reach. way: as in `unfetched`."""
    if repository:
        import huggingface_hub

        filename = filename or "model.safetensors"
        held = huggingface_hub.try_to_load_from_cache(repository, filename)
        if isinstance(held, str):
            return Path(held)
        check_reachable(name, huggingface_hub.hf_hub_url(repository, filename), way)
        try:
            return Path(huggingface_hub.hf_hub_download(repository, filename))
        except Exception as error:
            raise unfetched(name, str(error), way) from None
    if not url:
        raise UserError(
            f"model {name!r}: the library has no weights for it; leave out `pretrained`, or give"
            " weights=FILE"
        )
    place = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(url).path).name
    if not place.exists():
        check_reachable(name, url, way)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(place), progress=False)
        except Exception as error:
            raise unfetched(name, str(error), way) from None
    return place


def unfetched(name: str, why: str, way: str = "") -> UserError:
    """What is said of weights that are in no reach. way: what else a user can do."""
    files = f"give them as a file, {name.replace(':pretrained', ':weights=FILE')}, or leave out"
    return UserError(
        f"model {name!r}: its weights cannot be downloaded ({first_line(why)});"
        f" {way or f'{files} `pretrained`'}"
    )


def check_reachable(name: str, url: str, way: str = "") -> None:
    """Raises UserError unless the file's host says in a few seconds that it has it: libraries try
    for minutes. way: as in `unfetched`."""
    import httpx  # here alone: every start would wait for it

    try:
        answer = within(PATIENCE, lambda: httpx.head(url, timeout=PATIENCE))
    except Exception as error:  # of many types, the network's beneath them among them
        raise unfetched(name, f"{urlsplit(url).netloc}: {error}", way) from None
    if answer.is_error:
        raise unfetched(name, f"{urlsplit(url).netloc}: it answers {answer.status_code}", way)


@lru_cache(maxsize=256)
def _warn(line: str) -> None:
    """Once a process."""
    logger.warning("%s", line)
