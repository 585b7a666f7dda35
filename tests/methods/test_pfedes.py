"""pFedES against its equations: whole rounds, which part is frozen when, and the gradient that
passes through the frozen model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, relu

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods import pfedes
from pfedlora_flwr.methods.method import Method, Refused, Tensors, Upload
from pfedlora_flwr.methods.tensors import tensors_of
from tests.methods.slow import Client, Turn, extract, largest_difference, layer
from tests.plain import make, samples, visit

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


@pytest.mark.slow
def test_two_rounds_are_those_of_the_equations() -> None:
    assert largest_difference(slow(), **KEYS) < 1e-4


@pytest.mark.methods
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_term_would_be_seen(wrong: str) -> None:
    assert largest_difference(slow(wrong), **KEYS) > 1e-3


def method(**keys: object) -> Method:
    return make(from_flat({"method": "pfedes", "batch-size": 8, "models": "cnn5", **keys}))


@pytest.mark.parametrize("keys", [{}, {"setting": "homogeneous"}])
def test_443_numbers_for_any_models_and_classes(keys: dict[str, object]) -> None:
    for classes in (10, 100):
        state = make(from_flat({"method": "pfedes", **keys}), classes).state_init(0)
        assert sum(t.numel() for t in state.values()) == 443


def test_it_keeps_the_shape_and_is_never_negative() -> None:
    inputs = samples([0] * 5).inputs
    transformed = pfedes.extractor(3)(inputs)
    assert transformed.shape == inputs.shape
    assert transformed.min() >= 0


def test_each_phase_leaves_the_other_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    es, data = method(), samples([0, 1, 2, 3] * 3)
    model, received, turn = es.private_init(0, 1), es.state_init(2), visit(es.experiment)
    start, seen, sgd = {n: t.clone() for n, t in received.items()}, {}, turn.sgd

    def watched(phase: str, parameters: object, *arguments: object, **more: object) -> None:
        sgd(phase, parameters, *arguments, **more)
        seen[phase] = {n: t.clone() for n, t in tensors_of(model).items()}

    monkeypatch.setattr(turn, "sgd", watched)
    upload = es.local_update(model, received, data, turn)
    assert list(seen) == ["model", "extractor"]
    assert all(torch.equal(t, seen["model"][name]) for name, t in seen["extractor"].items()), (
        "phase 2 changed the model"
    )
    assert all(torch.equal(received[name], t) for name, t in start.items()), (
        "what was received was changed"
    )
    assert not any(torch.equal(upload.tensors[name], t) for name, t in start.items())
    assert all(p.requires_grad for p in model.parameters()), "left frozen"


def test_without_transformed_images_the_model_is_standalones_to_the_bit() -> None:
    es, data = method(**{"pfedes.mu": 0.0, "batch-size": 5}), samples([0, 1, 2, 3] * 3)
    alone = make(es.experiment.replace(method="standalone"))
    one, two = es.private_init(0, 1), alone.private_init(0, 1)
    es.local_update(one, es.state_init(2), data, visit(es.experiment))
    alone.local_update(two, {}, data, visit(es.experiment))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_phase_2_steps_along_the_finite_difference() -> None:
    """One step of rate 1 on θ, with a model that stays where it is: θ − θ_k is dCE(F(G(x)), y)/dθ,
    whose parts are known by nudging θ."""
    es, data = method(**{"lr": 1.0, "momentum": 0.0, "batch-size": 6}), samples([0, 1, 2, 3, 4, 5])
    model, theta = es.private_init(0, 1), es.state_init(2)
    turn = visit(es.experiment)
    sgd = turn.sgd
    turn.sgd = lambda phase, *arguments, **more: (  # type: ignore[method-assign]
        sgd(phase, *arguments, **more) if phase == "extractor" else None
    )
    sent = es.local_update(model, theta, data, turn).tensors
    exact = model.double()

    def loss(name: str, at: int, by: float) -> float:
        nudged = {n: t.double().clone() for n, t in theta.items()}
        nudged[name].view(-1)[at] += by
        proxy = pfedes.extractor(3).double()
        proxy.load_state_dict(nudged)
        with torch.no_grad():
            return float(cross_entropy(exact(proxy(data.inputs.double())), data.labels))

    for name, at in (("0.weight", 17), ("0.bias", 3), ("2.weight", 100), ("2.bias", 1)):
        slope = (loss(name, at, 1e-6) - loss(name, at, -1e-6)) / 2e-6
        assert float((theta[name] - sent[name]).view(-1)[at]) == pytest.approx(
            slope, rel=1e-3, abs=1e-6
        )


def test_phase_2_changes_no_statistic_of_a_model_with_batch_normalisation() -> None:
    es, data = method(**{"local-epochs": 3}), samples([0, 1, 2, 3] * 2)
    model = es.private_init(0, 3)
    norm = model.conv1 = torch.nn.Sequential(model.conv1, torch.nn.BatchNorm2d(16))
    es.local_update(model.train(), es.state_init(5), data, visit(es.experiment))
    assert norm[1].num_batches_tracked == 2 * 3, "two a step of phase 1"


def test_through_extractor_is_the_model_on_transformed_images() -> None:
    es, inputs = method(), samples([0, 1, 2]).inputs
    model, received = es.private_init(0, 1).eval(), es.state_init(3)
    proxy = pfedes.extractor(3)
    proxy.load_state_dict(received)
    found = es.other_predictors(model, received)
    assert list(found) == ["through-extractor"]
    torch.testing.assert_close(found["through-extractor"](inputs), model(proxy(inputs)))
    torch.testing.assert_close(es.predictor(model)(inputs), model(inputs))


@pytest.mark.parametrize(
    "labels", [[4] * 8, [0, 1, 2, 3, 4, 5, 6, 7, 8]], ids=["one class", "a last batch of one"]
)
def test_small_data(labels: list[int]) -> None:
    es, data = method(), samples(labels)
    upload = es.local_update(
        es.private_init(0, 1).train(), es.state_init(2), data, visit(es.experiment)
    )
    assert all(bool(t.isfinite().all()) for t in upload.tensors.values())


def test_refuses_another_extractor() -> None:
    es = method()
    state = es.state_init(0)
    es.check(Upload(state, 3), state, 0)
    with pytest.raises(Refused, match="expected"):
        es.check(Upload({n: t for n, t in state.items() if n != "2.bias"}, 3), state, 0)
    with pytest.raises(Refused, match="float64"):
        es.check(Upload({n: t.double() for n, t in state.items()}, 3), state, 0)
