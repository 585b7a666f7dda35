"""A shared last layer, with which LG-FedAvg, FedGH, FedRE, FedSSA and FedRoD begin."""

from __future__ import annotations

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods.method import Method, Tensors
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models import registry
from pfedlora_flwr.rng import seeded


def shared_last_layer(method: Method, seed: int) -> Tensors:
    """A fresh last layer that all clients can share. Raises UserError if some of theirs have a
    bias and some have none, and where one is not trained."""
    with_bias = {}
    for name in method.model_names:
        facts = registry.facts(name, method.task, method.built_width)
        if not facts.trained_last:
            raise UserError(
                f"method {method.experiment.method} shares last layers, and that of model"
                f" {name!r} is not trained"
            )
        with_bias[name] = facts.bias
    if len(set(with_bias.values())) > 1:
        told = ", ".join(
            f"{name} {'with' if bias else 'without'}" for name, bias in with_bias.items()
        )
        raise UserError(
            f"one last layer cannot fit some with a bias and some without ({told}); give all of"
            " them one, or none"
        )
    with seeded(seed):
        return tensors_of(method.client_model(0).last_layer())
