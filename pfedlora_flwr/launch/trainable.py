"""Whether clients of a run can be trained where this process is."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pfedlora_flwr.config.setup import Setup
from pfedlora_flwr.data.local import models_own
from pfedlora_flwr.errors import UserError, kind
from pfedlora_flwr.execution import RunConfig
from pfedlora_flwr.federation.server_state import check_state, first_state
from pfedlora_flwr.federation.visit import logits as logits_of
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.models.kept import frozen_names, kept
from pfedlora_flwr.models.model import given_names
from pfedlora_flwr.models.registry import check_lora, check_stored, load_object


def check_trainable(config: RunConfig) -> None:
    """Raises UserError unless the data are there, and the models and the method are as they must
    be."""
    setup = Setup.of(config)
    experiment, dataset, _ = setup.experiment, setup.dataset, setup.partition
    if experiment.loss.function:
        load_object(experiment.loss.function, "loss")
    if (wanted := setup.task.classes) != dataset.classes:
        key = "classes is" if experiment.classes else "the number of data.class-names is"
        raise UserError(
            f"{key} {wanted}; allowed: auto, or {dataset.classes}, which dataset"
            f" {dataset.name!r} has"
        )
    method = setup.method
    different = range(min(len(method.model_names), experiment.clients))
    for client in different:
        models_own(experiment, method.task, client)
        check_lora(method.model_of(client), method.task)
        check_stored(method.model_of(client), method.task)
    for client in different:
        _check_model(method, model := method.private_init(client, 0))
        _check_dtypes(str(method.model_of(client)), kept(model))
        if method.shares_lora:
            _check_base(method, client)
    state = first_state(experiment, method)
    _check_dtypes(f"method {experiment.method!r}", state)
    check_state(f"method {experiment.method!r}: download", method.download(state, 0, 1))


@torch.no_grad()
def _check_model(method: Method, model: object) -> None:
    """Raises UserError unless this is a module of which the method predicts logits."""
    name, task = method.experiment.method, method.task
    if not isinstance(model, nn.Module):
        raise UserError(
            f"method {name!r}: private_init returned {kind(model)}, expected an nn.Module"
        )
    logits = logits_of(method, model.eval(), task.blank(2))
    shape = list(logits.shape) if isinstance(logits, Tensor) else kind(logits)
    if shape != [2, task.classes]:
        raise UserError(
            f"method {name!r}: predictor gives {shape} for 2 {task.kind}, expected [2,"
            f" {task.classes}]"
        )


def _check_dtypes(whose: str, tensors: Mapping[str, Tensor]) -> None:
    """Raises UserError if one is of a type that does not travel, which is that of NumPy's, or is
    complex: sums and optimisers here are of real numbers."""
    for name, tensor in tensors.items():
        if tensor.is_complex():
            raise UserError(
                f"{whose}: {name} is complex; allowed: real numbers, as torch.view_as_real gives"
            )
        try:
            tensor.new_empty(0).numpy()
        except TypeError:
            held = str(tensor.dtype).removeprefix("torch.")
            raise UserError(
                f"{whose}: {name} is of {held}; allowed: types that NumPy has, such as float32"
                " (precision=bf16 computes in bf16)"
            ) from None


def _check_base(method: Method, client: int) -> None:
    """Raises UserError if LoRA is exchanged inside weights that each client draws for itself."""
    e, model = method.experiment, method.client_model(client)
    alike = e.initial_models == "architecture" and len(set(method.model_names)) == 1
    if not alike and not frozen_names(model) <= given_names(model):
        raise UserError(
            f"method {e.method} exchanges LoRA inside one base, and the frozen weights of"
            f" {method.model_of(client)} are drawn at random: give models weights of others, or all"
            " clients one model and initial-models=architecture"
        )
