"""pFedLoRA: whole rounds against a slow loop, the first adapter, and what features cost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.models import registry
from tests.methods import slow, slow_server
from tests.plain import maker, samples, visit

method = maker({"method": "pfedlora", "batch-size": 8, "models": "cnn5"})


def test_the_first_adapter_depends_on_the_seed_and_its_shape_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """θ⁰ has a purpose of its own: no model is built for it, and which models there are changes
    nothing."""
    one, other = method(), method(models="cnn5,cnn1")
    first, _ = (one.state_init(5), one.state_init(6)), other.state_init(6)
    monkeypatch.setattr(registry, "build", None)
    again = one.state_init(5), other.state_init(5)
    for name, tensor in first[0].items():
        assert torch.equal(tensor, again[0][name])
        assert torch.equal(tensor, again[1][name])
        assert not torch.equal(tensor, first[1][name])


KEYS = {"method": "pfedlora", "mu": 0.7, "adapter-epochs": 3, "adapter-lr": 0.05}
WRONG = ("weights", "order", "own losses alone", "one rate")


def difference(wrong: str = "") -> float:
    """ω: μ CE(h(f(x))) + (1 − μ) CE(A(f(x))), A frozen; then A: CE(A(f(x))), ω frozen."""
    mu = 0.3 if wrong == "weights" else 0.7

    def turn(kept: Tensors, received: Tensors, client: slow.Client) -> Tensors:
        def through(x: Tensor, y: Tensor) -> Tensor:
            low = slow.layer(received, "down", slow.extract(kept, x))
            return cross_entropy(slow.layer(received, "up", low), y)

        def of_model(x: Tensor, y: Tensor) -> Tensor:
            beside = through(x, y)
            beside = beside.detach() if wrong == "own losses alone" else beside
            return mu * slow_server.own_loss(kept, x, y) + (1 - mu) * beside

        def adapter_phase() -> None:
            lr = None if wrong == "one rate" else 0.05
            client.sgd([*received.values()], through, epochs=3, lr=lr)

        if wrong == "order":
            adapter_phase()
        client.sgd([*kept.values()], of_model)
        if wrong != "order":
            adapter_phase()
        return received

    return slow.largest_difference(turn, **KEYS)


def test_augmented_phase_2_recomputes_the_features_in_every_epoch() -> None:
    """Both run the same operations but for the features, which augmented images need anew in each
    of the two epochs."""
    spent, data = {}, samples([*range(10)] * 2)
    for augment in (True, False):
        lora = method(**{"augment": augment, "adapter-epochs": 2})
        made = visit(lora.experiment)
        upload = lora.local_update(lora.private_init(0, 3), lora.state_init(5), data, made)
        assert all(bool(torch.isfinite(t).all()) for t in upload.tensors.values())
        spent[augment] = made.flops["adapter"]
    features = 2 * (2_875_800 - 5_000) * len(data)  # CNN-5 without FC3
    assert spent[True] - spent[False] == features
