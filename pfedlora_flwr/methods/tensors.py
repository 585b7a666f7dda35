"""Operations of methods on a module's tensors: read, set, freeze, average."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from pfedlora_flwr.methods.method import ByClient, Tensors
from pfedlora_flwr.models.kept import load_kept
from pfedlora_flwr.models.named import random_weights
from pfedlora_flwr.training.device import Module, channels_last


def frozen(module: nn.Module) -> AbstractContextManager[None]:
    """Within it no parameter of the module takes a gradient; afterwards those do that did, and no
    others."""
    return fixed(module.parameters())


@contextmanager
def fixed(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """The same of some parameters."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def tensors_of(module: nn.Module) -> Tensors:
    """A module's parameters and buffers, detached, by name."""
    return {name: tensor.detach() for name, tensor in module.state_dict().items()}


def rebuilt(build: Callable[[], Module], tensors: Tensors) -> Module:
    """The model that `build` makes, with the tensors that `kept` named: what of it these replace is
    not looked up."""
    with random_weights():
        model = build()
    load_kept(model, tensors)
    return model


def filled(build: Callable[[], Module], tensors: Tensors) -> Module:
    """The same model, to predict on the CPU."""
    return channels_last(rebuilt(build, tensors).eval())


def proximal(model: nn.Module, received: Tensors) -> Callable[[], Tensor]:
    """‖w − w^t‖² over the trained parameters, as often as it is asked for: w the model's, w^t those
    of `received`, by their names in the state_dict."""
    pairs = [
        (parameter, received[name].to(parameter.device))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]

    def distance() -> Tensor:
        return torch.stack([(w - w_t).square().sum() for w, w_t in pairs]).sum()

    return distance


def weighted_mean(uploads: ByClient) -> Tensors:
    """Σ n_k θ_k / Σ n_k over the uploads (FedAvg), in float64, in the mapping's order; each tensor
    in its own dtype."""
    total = sum(upload.samples for upload in uploads.values())
    mean = {}
    for name, like in next(iter(uploads.values())).tensors.items():
        summed = torch.zeros(like.shape, dtype=torch.float64)
        for upload in uploads.values():
            summed += upload.tensors[name].double() * upload.samples
        mean[name] = (summed / total).to(like.dtype)
    return mean
