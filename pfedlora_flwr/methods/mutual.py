"""Mutual learning of a client's own model and a small shared one, for FML and FedKD."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from pfedlora_flwr.methods.method import Method, Tensors
from pfedlora_flwr.methods.tensors import rebuilt
from pfedlora_flwr.models import registry
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.training.device import channels_last


def small_model(method: Method) -> ClientModel:
    """A fresh small model (Section 5.2 of the pFedLoRA paper: CNN-5 if the clients' are different,
    CNN-1 if they are all CNN-1)."""
    return registry.small_model(method.model_names, method.task)


def received_model(method: Method, tensors: Tensors, device: torch.device) -> ClientModel:
    """The small model with the values that arrived, ready to train on `device`."""
    return channels_last(rebuilt(lambda: small_model(method), tensors).to(device))


def kl(learner: Tensor, peer: Tensor) -> Tensor:
    """KL(softmax(peer) ‖ softmax(learner)) of logits [B, C], a batch's mean over samples; the peer
    only teaches: no gradient."""
    return kl_div(
        learner.log_softmax(1), peer.detach().log_softmax(1), reduction="batchmean", log_target=True
    )
