"""pFedAFM against its equations: whole rounds, α's bounds, which part is frozen when, and what
travels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.methods.pfedafm import FeatureMixture
from pfedlora_flwr.methods.tensors import tensors_of
from tests.methods.slow import Client, Turn, extract, largest_difference, layer, part
from tests.plain import Plain, maker, samples

method = maker({"method": "pfedafm", "batch-size": 8, "models": "cnn4,cnn5"})
KEYS = {"method": "pfedafm"}
WRONG = ("α", "order", "not frozen", "keeps the trained", "never clamped")


def slow(wrong: str = "") -> Turn:
    """ω_k and α: CE(F_hd(α F_ex(x) + (1 − α) G(x)), y), α clamped after each step; then θ:
    CE(F_hd(G(x)), y) on a copy of G."""

    def turn(kept: Tensors, received: Tensors, client: Client) -> Tensors:
        small, local, alpha = part(kept, "small."), part(kept, "local."), kept["alpha"]
        for name, t in received.items():
            small[name].copy_(t)
        trained = {name: t.clone() for name, t in received.items()}

        def mixture(x: Tensor, y: Tensor) -> Tensor:
            a = 1 - alpha if wrong == "α" else alpha
            r = a * extract(local, x) + (1 - a) * extract(small, x)
            return cross_entropy(layer(local, "fc3", r), y)

        def model_phase() -> None:
            also = list(small.values()) if wrong == "not frozen" else []
            client.sgd(
                [*local.values(), alpha, *also],
                mixture,
                after=lambda: None if wrong == "never clamped" else alpha.clamp_(0, 1),
            )

        def extractor_phase() -> None:
            client.sgd(
                list(trained.values()),
                lambda x, y: cross_entropy(layer(local, "fc3", extract(trained, x)), y),
            )

        for phase in (
            (extractor_phase, model_phase) if wrong == "order" else (model_phase, extractor_phase)
        ):
            phase()
        if wrong == "keeps the trained":
            for name, t in trained.items():
                small[name].copy_(t)
        return trained

    return turn


@torch.no_grad()
def stir(model: FeatureMixture) -> None:
    """From here α moves within a few steps, and out of its bounds where nothing holds it."""
    model.alpha.copy_(torch.linspace(0, 1, 500))
    model.local.fc3.weight.mul_(30)


def difference(wrong: str = "") -> float:
    prepared = [stir] if wrong else [stir, lambda model: None]
    return max(largest_difference(slow(wrong), **KEYS, prepare=one) for one in prepared)


def test_it_predicts_with_the_extractor_that_arrived_and_shows_the_trained_one_beside() -> None:
    plain = Plain(
        method="pfedafm",
        models="cnn4,cnn5",
        clients=2,
        partition__kind="iid",
        dataset="synthetic:60",
        seed=1,
    )
    inputs = samples([0, 1, 2]).inputs
    stir(plain.model(0))
    plain.play([0, 1])
    model, received, sent = plain.model(0).eval(), plain.received[0], plain.uploads[0].tensors
    before = {name: t.clone() for name, t in tensors_of(model).items()}
    local, alpha = part(before, "local."), before["alpha"]

    def expected(theta: Tensors) -> Tensor:
        return layer(
            local, "fc3", alpha * extract(local, inputs) + (1 - alpha) * extract(theta, inputs)
        )

    torch.testing.assert_close(
        plain.method.predictor(model)(inputs), expected(received), rtol=0, atol=1e-5
    )
    found = plain.method.other_predictors(model, received)
    assert list(found) == ["trained-small"]
    torch.testing.assert_close(found["trained-small"](inputs), expected(sent), rtol=0, atol=1e-5)
    assert (expected(received) - expected(sent)).abs().max() > 1e-4, "the two are too alike to tell"
    assert plain.method.other_predictors(plain.method.private_init(0, 1), received) == {}
