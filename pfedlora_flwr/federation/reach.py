"""Whether a client's download can affect its predictions. This is tried by a visit on a few random
inputs, not inferred from the method's name."""

from __future__ import annotations

import torch
from torch import Tensor

from pfedlora_flwr.federation.visit import logits, visit
from pfedlora_flwr.methods.method import Method
from pfedlora_flwr.methods.tensors import Tensors
from pfedlora_flwr.models.named import without_path
from pfedlora_flwr.rng import derive, torch_generator
from pfedlora_flwr.training.loop import Samples

_INPUTS, _CLASSES = 6, 3
"""Of the client that is tried: so few that it takes no time."""


def unreached(method: Method) -> list[str]:
    """The client models, by name, of which the head alone is trained, and whose predictions are the
    same whatever their clients receive. None of a method that shares nothing."""
    if not method.state_init(derive(method.experiment.seed, "state")):
        return []
    return list(
        dict.fromkeys(
            without_path(method.model_of(k))
            for k in range(min(len(method.model_names), method.experiment.clients))
            if not method.predictor(method.private_init(k, 0)).extractor_parameters()
            and not reaches(method, k)
        )
    )


def reaches(method: Method, client: int) -> bool:
    """Whether two different downloads leave the client two models that predict differently."""
    e, task = method.experiment, method.task
    draws = torch_generator(e.seed, "reach", client)
    inputs = task.kind.random(task.shape, _INPUTS, draws)
    samples = Samples(inputs, torch.arange(_INPUTS) % min(_CLASSES, task.classes))
    state = method.state_init(derive(e.seed, "state"))
    others = {}
    for other in sorted({(client + step) % e.clients for step in (1, 2)} - {client}):
        received = method.download(state, other, 1)
        others[other] = visit(method, method.initial_model(other), received, samples, other, 1)[0]
    if others:
        state = method.aggregate(others, state, 1)
    received = method.download(state, client, 2)
    changed = {
        name: t + torch.randn(t.shape, generator=draws).to(t.dtype) if t.is_floating_point() else t
        for name, t in received.items()
    }
    one, two = (_logits(method, client, download, samples) for download in (received, changed))
    return not torch.equal(one, two)


def _logits(method: Method, client: int, received: Tensors, samples: Samples) -> Tensor:
    """Of the client's model after a visit."""
    model = method.initial_model(client)
    visit(method, model, received, samples, client, 2)
    with torch.no_grad():
        return logits(method, model.eval(), samples.batch(slice(None)))
