"""Common coordinates by anchors: public inputs, and what one reference encoder makes of them.

Each encoder is mapped onto the reference by a ridge regression on the anchors, in closed form and
in float64. With A [n, w] the features of the anchors and R [n, r] the reference's, both without
their means, and G = A Aᵀ: B = Aᵀ (G + λ mean(diag G) I)⁻¹ R. The representation of an input with
features x is (x − mean A) B. Nothing private has a part in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import Stamp, file_sha256, stamp_of, write_atomically
from pfedlora_flwr.models import named, text
from pfedlora_flwr.models.encoded import kept
from pfedlora_flwr.models.linear import Linear, layer_of
from pfedlora_flwr.models.model import WithLast
from pfedlora_flwr.models.own import Whole
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.kinds import TEXT, of_inputs
from pfedlora_flwr.training.loop import Samples

FEWEST = 10
_MAPS: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}
"""Of the process's encoders: shift and matrix, as `mapped` gives them."""
_MOST_MAPS = 32
_WAY = "`pfedlora align --anchors DATA --reference MODEL --output FILE` writes one"


@dataclass(frozen=True)
class Anchors:
    """inputs: as a dataset has them, [n, …]. reference: what the reference makes of them, [n, r].
    about: reference (its name), base (its weights), dataset, licence."""

    inputs: npt.NDArray[Any]
    reference: Tensor
    about: Mapping[str, str]


class Anchored(WithLast):
    """The model behind such a map of its features, before a new last layer."""

    def __init__(self, model: Whole, base: str, shift: Tensor, matrix: Tensor, classes: int):
        super().__init__()
        model.drop_last_layer()
        self.model = model
        bias = (-shift @ matrix).float()
        self.map = layer_of(matrix.T.float().contiguous(), bias).requires_grad_(False)
        self.width = matrix.shape[1]
        self.last = Linear(self.width, classes)
        self.base = base
        self.description = f"{model.description}, mapped by anchors"

    def encode(self, inputs: Tensor) -> Tensor:
        return self.map(self.model.encode(inputs))


def anchored(model: Whole, said: ModelSpec, task: Task) -> Anchored:
    """A client model on a frozen encoder, mapped by the file that its settings name. Raises
    UserError."""
    assert said.anchors
    file = Path(said.anchors)
    stamp = stamp_at(file)
    found = read(stamp)
    kind = of_inputs(found.inputs)
    if (kind, kind.shape_of(found.inputs)) != (task.kind, task.shape):
        raise UserError(
            f"anchors {str(file)!r} are {kind.of(kind.shape_of(found.inputs))}, the data"
            f" {task.kind.of(task.shape)}: write them by the run's own image-size or max-tokens"
        )
    base = f"{model.base}, {anchors_base(stamp)}"
    width, to = model.width, found.reference.shape[1]
    if named.looked_at():
        return Anchored(
            model, base, torch.zeros(width).double(), torch.zeros(width, to).double(), task.classes
        )
    known = base, model.side, said.name, said.anchors_ridge
    if known not in _MAPS:
        if len(_MAPS) == _MOST_MAPS:
            del _MAPS[next(iter(_MAPS))]
        own = seen(model, said.name, found.inputs)
        _MAPS[known] = mapped(own, found.reference, said.anchors_ridge)
    return Anchored(model, base, *_MAPS[known], task.classes)


def anchors_base(stamp: Stamp) -> str:
    """What the file is known by."""
    return f"anchors sha256:{file_sha256(stamp)}"


def stamp_at(file: Path) -> Stamp:
    """The file as it is now. Raises UserError where it cannot be read."""
    try:
        return stamp_of(file)
    except OSError as error:
        raise UserError(f"anchors {str(file)!r}: {error.strerror}; {_WAY}") from None


@lru_cache(maxsize=4)
def read(stamp: Stamp) -> Anchors:
    """The anchors in a file that `write` wrote. Raises UserError where it is none."""
    try:
        with safetensors.safe_open(stamp[0], "pt") as stored:
            about = json.loads((stored.metadata() or {})["anchors"])
            inputs, reference = (stored.get_tensor(name) for name in ("inputs", "reference"))
    except (OSError, safetensors.SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"anchors {stamp[0]!r} cannot be read ({error}); {_WAY}") from None
    return Anchors(inputs.numpy(), reference, about)


def write(file: Path, anchors: Anchors) -> None:
    """Writes them. Raises UserError for fewer than ten."""
    if len(anchors.inputs) < FEWEST:
        raise UserError(f"{len(anchors.inputs)} anchors; allowed: at least {FEWEST}")
    tensors = {
        "inputs": torch.from_numpy(np.ascontiguousarray(anchors.inputs)),
        "reference": anchors.reference.contiguous(),
    }
    told = {"anchors": json.dumps(dict(anchors.about))}
    write_atomically(file, safetensors.torch.save(tensors, told))


def seen(model: Whole, name: str, inputs: npt.NDArray[Any]) -> Tensor:
    """What a frozen encoder makes of public inputs, normalised as its weights were made: float64
    [n, width]. It is kept as its outputs on other samples are."""
    kind = of_inputs(inputs)
    made = named.made_with(name)
    if kind == TEXT:
        inputs = text.tokenised(name, inputs)
    elif made is None:
        raise UserError(
            f"model {name!r} has no weights of which the library says how their inputs were"
            " normalised, which anchors need"
        )
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    mean, std = (made.mean, made.std) if made else ((), ())
    samples: Samples = kind.samples(torch.from_numpy(inputs), labels, mean, std)
    return kept(model, samples, "fp32").double()


def mapped(own: Tensor, reference: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """(mean A [w], B [w, r]) of A [n, w] and R [n, r], float64. Raises UserError for features that
    do not differ."""
    mean = own.mean(0)
    a, r = own - mean, (reference - reference.mean(0)).double()
    weight = ridge * float(a.square().sum(1).mean())  # of the mean diagonal of A Aᵀ
    if not weight:
        raise UserError("the anchors' features are all alike: write them from inputs that differ")
    n, width = a.shape
    if n <= width:
        return mean, a.T @ torch.linalg.solve(a @ a.T + weight * torch.eye(n).double(), r)
    return mean, torch.linalg.solve(a.T @ a + weight * torch.eye(width).double(), a.T @ r)
