"""pFedLoRA: the two phases against hand computations, and the aggregate against a weighted mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.models import registry
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.training.loop import Samples
from tests.plain import make, samples, visit


def setup(**keys: object) -> tuple[Any, Samples]:
    base = {"method": "pfedlora", "batch-size": 8, "models": "cnn5"}
    return make(from_flat(base | keys)), samples([*range(10)] * 2)


def test_the_first_adapter_depends_on_the_seed_and_its_shape_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """θ⁰ has a purpose of its own: no model is built for it, and which models there are changes
    nothing."""
    one, other = setup()[0], setup(models="cnn5,cnn1")[0]
    first, _ = (one.state_init(5), one.state_init(6)), other.state_init(6)
    monkeypatch.setattr(registry, "build", None)
    again = one.state_init(5), other.state_init(5)
    for name, tensor in first[0].items():
        assert torch.equal(tensor, again[0][name])
        assert torch.equal(tensor, again[1][name])
        assert not torch.equal(tensor, first[1][name])


def test_phase_1_changes_no_adapter_weight_and_gives_fc3_the_own_loss_alone() -> None:
    """One step by hand: ω ← ω − η ∇(μ ℓ_2 + (1−μ) ℓ_1); FC3 sees only μ ∇ℓ_2, the encoder both."""
    method, data = setup(**{"mu": 0.7, "batch-size": 20, "momentum": 0.0, "lr": 0.1})
    theta = method.state_init(5)
    before = {name: t.clone() for name, t in theta.items()}
    model = method.private_init(0, 3)
    twin = method.private_init(0, 3)
    adapter = Adapter(500, 60, 10)
    adapter.load_state_dict(theta)
    own, through = (
        cross_entropy(twin(data.inputs), data.labels),
        cross_entropy(adapter(twin.encode(data.inputs)), data.labels),
    )
    grads_own = torch.autograd.grad(own, list(twin.parameters()), retain_graph=True)
    grads_through = torch.autograd.grad(through, list(twin.parameters()), allow_unused=True)
    method.local_update(model, theta, data, visit(method.experiment))
    for (name, now), start, g2, g1 in zip(
        model.named_parameters(), twin.parameters(), grads_own, grads_through, strict=True
    ):
        if name.startswith("fc3"):
            assert g1 is None
            expected = start - 0.1 * 0.7 * g2
        else:
            expected = start - 0.1 * (0.7 * g2 + 0.3 * g1)
        assert torch.allclose(now, expected, atol=1e-6), name
    assert all(torch.equal(theta[name], before[name]) for name in before), (
        "the received adapter was changed"
    )


def test_phase_2_changes_no_model_weight_and_steps_the_adapter_on_the_updated_model() -> None:
    method, data = setup(**{"batch-size": 20, "momentum": 0.0, "lr": 0.1, "adapter-lr": 0.5})
    theta, model = method.state_init(5), method.private_init(0, 3)
    upload = method.local_update(model, theta, data, visit(method.experiment))
    adapter = Adapter(500, 60, 10)
    adapter.load_state_dict(theta)
    # with the model as phase 1 left it
    loss = cross_entropy(adapter(model.encode(data.inputs).detach()), data.labels)
    for (name, start), gradient in zip(
        adapter.named_parameters(),
        torch.autograd.grad(loss, list(adapter.parameters())),
        strict=True,
    ):
        assert torch.allclose(upload.tensors[name], start - 0.5 * gradient, atol=1e-6), name
    assert upload.samples == 20


def test_cached_features_give_the_adapter_that_recomputed_ones_give() -> None:
    method, data = setup(**{"local-epochs": 1, "adapter-epochs": 3})
    theta, model = method.state_init(5), method.private_init(0, 3)
    v = visit(method.experiment)
    upload = method.local_update(model, theta, data, v)
    adapter, generator = Adapter(500, 60, 10), visit(method.experiment).generator
    adapter.load_state_dict(theta)
    torch.randperm(20, generator=generator)  # phase 1's epoch
    optimizer = torch.optim.SGD(adapter.parameters(), 0.01, momentum=0.9)
    for _ in range(3):
        for index in torch.randperm(20, generator=generator).split(8):
            optimizer.zero_grad()
            cross_entropy(
                adapter(model.encode(data.inputs[index]).detach()), data.labels[index]
            ).backward()
            optimizer.step()
    for name, parameter in adapter.named_parameters():
        assert torch.allclose(upload.tensors[name], parameter, atol=1e-6), name


def test_augmented_phase_2_recomputes_the_features_in_every_epoch() -> None:
    """Both run the same operations but for the features, which augmented images need anew in each
    of the two epochs."""
    spent = {}
    for augment in (True, False):
        method, data = setup(**{"augment": augment, "adapter-epochs": 2})
        made = visit(method.experiment)
        upload = method.local_update(method.private_init(0, 3), method.state_init(5), data, made)
        assert all(bool(torch.isfinite(t).all()) for t in upload.tensors.values())
        spent[augment] = made.flops["adapter"]
    features = 2 * (2_875_800 - 5_000) * len(data)  # CNN-5 without FC3
    assert spent[True] - spent[False] == features
