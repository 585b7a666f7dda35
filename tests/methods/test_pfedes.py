"""pFedES against its equations: whole rounds, which part is frozen when, and the gradient that
passes through the frozen model."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, relu

from pfedlora_flwr.methods import pfedes
from pfedlora_flwr.methods.method import Tensors
from tests.methods.slow import Client, Turn, extract, largest_difference, layer
from tests.plain import maker, samples

method = maker({"method": "pfedes", "batch-size": 8, "models": "cnn5"})
KEYS = {"method": "pfedes", "pfedes.mu": 0.3, "pfedes.extractor-epochs": 3}
WRONG = ("weights", "order", "one epoch fewer", "no last ReLU")


def slow(wrong: str = "") -> Turn:
    """ω_k: μ CE(F(G(x)), y) + (1 − μ) CE(F(x), y), θ frozen; then θ: CE(F(G(x)), y), ω_k frozen."""

    def turn(kept: Tensors, received: Tensors, client: Client) -> Tensors:
        theta, mu = received, 0.7 if wrong == "weights" else 0.3

        def transformed(x: Tensor) -> Tensor:
            x = relu(conv2d(x, theta["0.weight"], theta["0.bias"], padding=1))
            x = conv2d(x, theta["2.weight"], theta["2.bias"], padding=1)
            return x if wrong == "no last ReLU" else relu(x)

        def predicted(x: Tensor) -> Tensor:
            return layer(kept, "fc3", extract(kept, x))

        def model_phase() -> None:
            def loss(x: Tensor, y: Tensor) -> Tensor:
                return mu * cross_entropy(predicted(transformed(x)), y) + (1 - mu) * cross_entropy(
                    predicted(x), y
                )

            client.sgd(list(kept.values()), loss)

        def extractor_phase() -> None:
            epochs = 2 if wrong == "one epoch fewer" else 3
            client.sgd(
                list(theta.values()),
                lambda x, y: cross_entropy(predicted(transformed(x)), y),
                epochs=epochs,
            )

        for phase in (
            (extractor_phase, model_phase) if wrong == "order" else (model_phase, extractor_phase)
        ):
            phase()
        return {name: t.clone() for name, t in theta.items()}

    return turn


def difference(wrong: str = "") -> float:
    return largest_difference(slow(wrong), **KEYS)


def test_through_extractor_is_the_model_on_transformed_images() -> None:
    es, inputs = method(), samples([0, 1, 2]).inputs
    model, received = es.private_init(0, 1).eval(), es.state_init(3)
    proxy = pfedes.extractor(3)
    proxy.load_state_dict(received)
    found = es.other_predictors(model, received)
    assert list(found) == ["through-extractor"]
    torch.testing.assert_close(found["through-extractor"](inputs), model(proxy(inputs)))
    torch.testing.assert_close(es.predictor(model)(inputs), model(inputs))
