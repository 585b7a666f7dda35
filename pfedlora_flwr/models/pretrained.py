"""Library models with fixed weights: read once per process and shared by all its clients.

Only what stands behind them is trained: a last layer, with a neck before it or without."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.files import Stamp, file_sha256, stamp_of
from pfedlora_flwr.models import named as libraries
from pfedlora_flwr.models.linear import Linear
from pfedlora_flwr.models.model import TENSORS, ClientModel, modules_outside
from pfedlora_flwr.models.named import Named
from pfedlora_flwr.models.own import Whole
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.loop import Samples, infer

Classifier = tuple[Tensor, Tensor]
"""Weight, [outputs, width], and bias, [outputs]."""


@dataclass(frozen=True)
class Backbone:
    """A module in evaluation mode that trains nothing: images to [B, width].

    place: of the layer that was taken out; None where none was. bias: whether it had one. name: of
    the model and the SHA-256 of its weights' file. classifier: the weights' own; None where they
    have none."""

    module: nn.Module
    place: str | None
    width: int
    bias: bool
    name: str
    classifier: Classifier | None


def build(named: Named, task: Task, side: int | None, *, logits: bool) -> Whole:
    """A client model on the weights that `named` asks for, with a new last layer, which is drawn
    from torch's global generator. Raises UserError.

    side: as in Whole. logits: R is what the pretrained classifier says, else what it sees."""
    stamp = None if libraries.looked_at() else _stamp(named)
    backbone = _backbone(named, libraries.sized(task, side), logits, stamp)
    last = Linear(backbone.width, task.classes, bias=backbone.bias)
    model = Whole(backbone.module, last, backbone.place, side)
    model.base = backbone.name
    model.classifier = backbone.classifier
    return model


def frozen_encoder(module: nn.Module) -> Whole | None:
    """The part of what a client keeps that is such an encoder and trains nothing; None where there
    is none. Not one of a user's class, of which the base says the tensors, and not the code."""
    for _, part in modules_outside(module):
        for still in part.still if isinstance(part, ClientModel) else ():
            own = isinstance(part, Whole) and still is part.module
            inside = (m for m in still.modules() if isinstance(m, Whole))  # of a map by anchors
            encoder = part if own else next(inside, None)
            if isinstance(encoder, Whole) and encoder.base and not encoder.base.startswith(TENSORS):
                return encoder
    return None


def only_last_trained(model: ClientModel) -> bool:
    """Whether it is on such an encoder, and nothing before its last layer is trained."""
    return frozen_encoder(model) is not None and not model.extractor_parameters()


def with_outputs(samples: Samples, encoder: Whole, outputs: Tensor | None = None) -> Samples:
    """The samples with what a frozen encoder makes of them, [n, width], computed in large batches
    where it is not given."""
    if samples.known is not None and samples.known[0] is encoder.module:
        return samples
    found = infer(encoder.encode, samples) if outputs is None else outputs
    return replace(samples, known=(encoder.module, found))


def _stamp(named: Named) -> Stamp:
    """The file of the weights as it is now: another one under its name is read anew."""
    file = libraries.file_of(named)
    try:
        return stamp_of(file)
    except OSError as error:
        raise UserError(f"model {str(named)!r}: {file} cannot be read: {error.strerror}") from None


@lru_cache(maxsize=16)
def _backbone(named: Named, task: Task, logits: bool, stamp: Stamp | None) -> Backbone:
    """stamp: of the weights' file; None: random ones, to be looked at."""
    state = libraries.state_of(named) if stamp or logits else {}
    if classes := _classes(named, task, state):  # its own classifier, which is then taken out
        task = replace(task, classes=classes)
    elif logits:
        raise UserError(
            f"model {str(named)!r}: its weights have no classifier, which"
            " representation=pretrained-logits needs"
        )
    with seeded(0):  # what the caller draws must not depend on whether this is the first call
        module, place = libraries.library_model(named, task, state)
    last = module.get_submodule(place)
    assert isinstance(last, nn.Linear)
    if not logits:
        module = Whole.cut(module, place).module
    return Backbone(
        module.requires_grad_(False).eval(),
        None if logits else place,
        task.classes if logits else last.in_features,
        last.bias is not None,
        f"{named.library}:{named.architecture} sha256:{file_sha256(stamp)}"
        if stamp
        else "not looked up",
        (last.weight.detach(), _bias(last)) if classes else None,
    )


def classifier_of(name: str) -> Classifier:
    """That of a library model's weights, by its name. Raises UserError where they have none."""
    named = libraries.parse(name)
    if named is None or not named.weights:
        raise UserError(
            f"model {name!r} has no weights with a classifier, of which adapter.down=basis takes"
            " the principal directions; allowed there: fixed, trained, or adapter.basis=FILE"
        )
    return _classifier(named, _stamp(named))


@lru_cache(maxsize=16)
def _classifier(named: Named, stamp: Stamp) -> Classifier:
    made = libraries.made(named)
    if made is None:
        raise UserError(f"model {str(named)!r}: {named.library} does not say what it was made for")
    bare = Named(named.library, named.architecture, "")
    head = libraries.layout(bare, Task(made.classes, made.shape)).head
    state = libraries.state_of(named)
    if f"{head}.weight" not in state:
        raise UserError(
            f"model {str(named)!r}: its weights have no classifier, of which adapter.down=basis"
            " takes the principal directions; allowed there: fixed, trained, or adapter.basis=FILE"
        )
    weight = state[f"{head}.weight"].float()
    bias = state.get(f"{head}.bias")
    return weight, torch.zeros(len(weight)) if bias is None else bias.float()


def _bias(layer: nn.Linear) -> Tensor:
    bias = layer.bias
    return layer.weight.new_zeros(layer.out_features) if bias is None else bias.detach()


def _classes(named: Named, task: Task, state: dict[str, Tensor]) -> int:
    """The classes that the weights' own classifier tells apart; 0 where they have none."""
    head = libraries.layout(Named(named.library, named.architecture, ""), task).head
    return len(state.get(f"{head}.weight", ()))
