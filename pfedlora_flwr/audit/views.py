"""What an audit reads in a method's messages: the shared part, and the logits that it makes.

A method of a user's may say both itself, by members of these names and arguments (`shared_part` and
`shared_predictor`, without `method`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

from torch import Tensor
from torch.nn.functional import linear

from pfedlora_flwr.methods import fedkd
from pfedlora_flwr.methods.fedavg import FedAvg
from pfedlora_flwr.methods.fedbn import FedBN
from pfedlora_flwr.methods.fedkd import FedKD
from pfedlora_flwr.methods.fedmrl import FedMRL
from pfedlora_flwr.methods.fedrod import FedRoD
from pfedlora_flwr.methods.fml import FML
from pfedlora_flwr.methods.lg_fedavg import LGFedAvg
from pfedlora_flwr.methods.method import Method, Tensors
from pfedlora_flwr.methods.mutual import small_model
from pfedlora_flwr.methods.pfedlora import PFedLoRA
from pfedlora_flwr.methods.pfedlora_plus import ROWS, PFedLoRAPlus
from pfedlora_flwr.methods.tensors import filled, rebuilt
from pfedlora_flwr.models.kept import kept
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
    return uploaded


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
def _(method: FedMRL, shared: Tensors, own: ClientModel | None) -> Predictor:
    return filled(method.small_model, shared)


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
