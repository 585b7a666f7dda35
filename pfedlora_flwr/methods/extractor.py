"""An extractor that all clients share, everything before the last layer: what FedPer and FedRep
send."""

from __future__ import annotations

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods.method import Method, Tensors
from pfedlora_flwr.rng import seeded


def shared_extractor(method: Method, seed: int) -> Tensors:
    """The trained part of a fresh extractor. Raises UserError if nothing of it is trained."""
    with seeded(seed):
        model = method.client_model(0)
    if not model.extractor_parameters():
        raise UserError(
            f"method {method.experiment.method} shares what is before the last layer, and nothing"
            f" of it is trained in model {method.model_names[0]!r}: set neck=always or train=all"
        )
    return model.extractor_tensors()
