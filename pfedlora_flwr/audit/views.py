"""What an audit reads in a method's messages: the shared part, and the logits that it makes.

A method of a user's may say both itself, by members of these names and arguments (`shared_part` and
`shared_predictor`, without `method`)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import singledispatch

from torch import Tensor
from torch.nn.functional import linear

from pfedlora_flwr.methods import fedkd
from pfedlora_flwr.methods.fedavg import FedAvg
from pfedlora_flwr.methods.fedbabu import FedBABU, FineTuned
from pfedlora_flwr.methods.fedbn import FedBN
from pfedlora_flwr.methods.fedit import FedIT
from pfedlora_flwr.methods.fedkd import FedKD
from pfedlora_flwr.methods.fedmrl import FedMRL, Matryoshka
from pfedlora_flwr.methods.fedrod import FedRoD
from pfedlora_flwr.methods.fml import FML
from pfedlora_flwr.methods.lg_fedavg import LGFedAvg
from pfedlora_flwr.methods.lora_factors import load_some
from pfedlora_flwr.methods.method import Method, Tensors
from pfedlora_flwr.methods.mutual import small_model
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.methods.pfedlora_plus import ROWS, PFedLoRAPlus
from pfedlora_flwr.methods.rolora import RoLoRA
from pfedlora_flwr.methods.tensors import filled, rebuilt
from pfedlora_flwr.models.kept import kept, load_kept
from pfedlora_flwr.models.model import ClientModel

Predictor = Callable[[Tensor], Tensor]
"""Inputs → logits, [B, classes]."""


def shared_part(method: Method, received: Tensors, uploaded: Tensors | None = None) -> Tensors:
    """The shared part as a client received it or, where its upload is given, as it left it."""
    if hasattr(method, "shared_part"):
        return method.shared_part(received, uploaded)
    if isinstance(method, FedKD):  # θ̂, and θ̂ plus the update that the factors stand for
        start = fedkd.add(method.initial, fedkd.decompress(received, method.initial))
        if uploaded is None:
            return start
        return fedkd.add(start, fedkd.decompress(uploaded, method.initial))
    if uploaded is None:
        return received
    if isinstance(method, PFedLoRAPlus) and method.by_class:  # rows of the classes held alone
        whole = {name: uploaded.get(name, tensor) for name, tensor in received.items()}
        for name in ROWS:
            whole[name] = received[name].index_copy(0, uploaded["classes"], uploaded[name])
        return whole
    # RoLoRA sends one factor in turn
    return received | uploaded if isinstance(method, RoLoRA) else uploaded


def shared_predictor(
    method: Method, shared: Tensors, own: ClientModel | None = None
) -> Predictor | None:
    """Logits by a shared part alone or, where `own` is given, behind that model's encoder; None
    where it makes none."""
    if hasattr(method, "shared_predictor"):
        return method.shared_predictor(shared, own)
    return _logits(method, shared, own)


@singledispatch
def _logits(method: Method, shared: Tensors, own: ClientModel | None) -> Predictor | None:
    """By the method's class, or the one that it derives from."""
    return None


@_logits.register
def _(method: FedAvg, shared: Tensors, own: ClientModel | None) -> Predictor:
    return filled(lambda: method.client_model(0), shared)


@_logits.register
def _(method: FedBN, shared: Tensors, own: ClientModel | None) -> Predictor | None:
    """What is shared needs a client's own batch normalisation."""
    if own is None:
        return None
    return rebuilt(lambda: method.client_model(0), kept(own) | shared).eval()


@_logits.register
def _(method: FedRoD, shared: Tensors, own: ClientModel | None) -> Predictor | None:
    """ψ alone needs an encoder."""
    if own is None and not method.one_architecture:
        return None
    return method.generic(shared, own)


@_logits.register(FML)
@_logits.register(FedKD)
def _(method: Method, shared: Tensors, own: ClientModel | None) -> Predictor:
    return filled(lambda: small_model(method), shared)


@_logits.register
def _(method: FedMRL, shared: Tensors, own: ClientModel | None) -> Predictor | None:
    """θ's head is trained behind a client's projection, and its encoder before it."""
    if not isinstance(own, Matryoshka):
        return None
    model = copy.deepcopy(own)
    load_kept(model.small, shared)
    return lambda inputs: model.small_head(model.encode(inputs))


@_logits.register
def _(method: FedBABU, shared: Tensors, own: ClientModel | None) -> Predictor:
    """The body was trained before the first head, which the public seed gives."""
    model = method.initial_model(0)
    assert isinstance(model, FineTuned)
    model.restart(shared)
    return method.predictor(model).eval()


@_logits.register
def _(method: FedIT, shared: Tensors, own: ClientModel | None) -> Predictor | None:
    """With its head LoRA is all that a client trains, of a model whose rest the public seed and the
    base give; not of methods that keep a part private, or send another layout."""
    sent = {name: tensor.shape for name, tensor in shared.items()}
    for client, name in enumerate(method.model_names):  # which may differ in rank
        if {n: t.shape for n, t in method.layouts[name].items()} != sent:
            continue
        model = method.predictor(method.initial_model(client)).eval()
        if {n for n, p in model.named_parameters() if p.requires_grad} <= sent.keys():
            load_some(model, shared)
            return model
    return None


@_logits.register
def _(method: LGFedAvg, shared: Tensors, own: ClientModel | None) -> Predictor | None:
    """A last layer needs an encoder."""
    if own is None:
        return None
    return lambda inputs: linear(own.encode(inputs), shared["weight"], shared.get("bias"))


@_logits.register
def _(method: PFedLoRA, shared: Tensors, own: ClientModel | None) -> Predictor | None:
    """θ needs an encoder, and f_k stays with its client."""
    if own is None:
        return None
    adapter = method.loaded(own, shared)
    return lambda inputs: adapter(method.encode(own, inputs))
