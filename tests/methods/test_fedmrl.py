"""FedMRL against its equations: whole rounds, what is nested in what, and what travels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from pfedlora_flwr.methods.tensors import tensors_of
from tests.methods.slow import Client, Turn, extract, largest_difference, layer, part
from tests.plain import Plain, make, samples, visit

KEYS = {
    "method": "fedmrl",
    "fedmrl.representation-dim": 30,
    "fedmrl.small-weight": 0.7,
    "fedmrl.large-weight": 1.2,
}
WRONG = ("weights", "order", "slice before P", "detached")


def slow(wrong: str = "") -> Turn:
    """R = P(G_ex(x) | F_ex(x)), m_G CE(G_hd(R[:30]), y) + m_F CE(F_hd(R), y), everything
    trained."""

    def turn(kept: Tensors, received: Tensors, client: Client) -> Tensors:
        small, local = part(kept, "small."), part(kept, "local.")
        for name, t in received.items():
            small[name].copy_(t)
        m_g, m_f = (1.2, 0.7) if wrong == "weights" else (0.7, 1.2)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            r_g, r_f = extract(small, x), extract(local, x)
            r = layer(
                kept, "projector", torch.cat([r_f, r_g] if wrong == "order" else [r_g, r_f], 1)
            )
            nested = (
                r_g
                if wrong == "slice before P"
                else r.detach()[:, :30]
                if wrong == "detached"
                else r[:, :30]
            )
            return m_g * cross_entropy(layer(small, "fc3", nested), y) + m_f * cross_entropy(
                layer(local, "fc3", r), y
            )

        client.sgd(list(kept.values()), loss)
        return {name: t.clone() for name, t in small.items()}

    return turn


@pytest.mark.slow
def test_two_rounds_are_those_of_the_equations() -> None:
    assert largest_difference(slow(), **KEYS) < 1e-4


@pytest.mark.methods
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_term_would_be_seen(wrong: str) -> None:
    assert largest_difference(slow(wrong), **KEYS) > 1e-3


def method(**keys: object) -> Any:
    return make(from_flat({"method": "fedmrl", "batch-size": 8, "models": "cnn4,cnn5", **keys}))


def test_everything_is_trained_and_only_the_small_model_goes() -> None:
    fedmrl, data = method(), samples([0, 1, 2, 3] * 2)
    model, received = fedmrl.private_init(0, 1), fedmrl.state_init(2)
    model.small.load_state_dict(received)
    before = {name: t.clone() for name, t in tensors_of(model).items()}
    upload = fedmrl.local_update(model, received, data, visit(fedmrl.experiment))
    assert not [name for name, t in tensors_of(model).items() if torch.equal(t, before[name])], (
        "left untrained"
    )
    assert list(upload.tensors) == list(received)
    assert upload.tensors["fc2.weight"].shape == (100, 500)
    assert upload.tensors["fc3.weight"].shape == (10, 100)


def test_without_its_loss_the_small_last_layer_gets_no_gradient() -> None:
    fedmrl, data = method(**{"fedmrl.small-weight": 0.0}), samples([0, 1, 2, 3] * 2)
    received = fedmrl.state_init(2)
    sent = fedmrl.local_update(
        fedmrl.private_init(0, 1), received, data, visit(fedmrl.experiment)
    ).tensors
    assert [name for name in sent if torch.equal(sent[name], received[name])] == [
        "fc3.weight",
        "fc3.bias",
    ]


def test_the_projector_stays_from_visit_to_visit() -> None:
    """And so does the copy of the small model: a client that is not sampled predicts as before."""
    plain = Plain(
        method="fedmrl",
        models="cnn4,cnn5",
        clients=2,
        partition__kind="iid",
        dataset="synthetic:60",
    )
    plain.play([0, 1])
    projector, whole = (
        plain.model(0).projector.weight.detach().clone(),
        {n: t.clone() for n, t in tensors_of(plain.model(0)).items()},
    )
    plain.play([1])
    assert all(torch.equal(t, whole[name]) for name, t in tensors_of(plain.model(0)).items())
    plain.play([0])
    moved = (plain.model(0).projector.weight - projector).norm() / projector.norm()
    assert 0 < moved < 0.1


def test_the_local_model_starts_as_under_any_method() -> None:
    fedmrl = method()
    alone = make(fedmrl.experiment.replace(method="standalone"))
    ours, theirs = tensors_of(fedmrl.private_init(1, 5).local), tensors_of(alone.private_init(1, 5))
    assert all(torch.equal(ours[name], t) for name, t in theirs.items())


def test_other_predictors() -> None:
    fedmrl, inputs = method(), samples([0, 1, 2]).inputs
    model = fedmrl.private_init(0, 1).eval()
    p = tensors_of(model)
    small, local = part(p, "small."), part(p, "local.")
    r = layer(p, "projector", torch.cat([extract(small, inputs), extract(local, inputs)], 1))
    expected: dict[str, Tensor] = {
        "mix-small": layer(small, "fc3", r[:, :100]),
        "single-small": layer(small, "fc3", extract(small, inputs)),
        "single-large": layer(local, "fc3", extract(local, inputs)),
    }
    found: dict[str, Callable[[Tensor], Tensor]] = fedmrl.other_predictors(
        model, fedmrl.state_init(0)
    )
    assert list(found) == list(expected)
    for name, predict in found.items():
        torch.testing.assert_close(predict(inputs), expected[name], rtol=0, atol=1e-5)
    torch.testing.assert_close(
        fedmrl.predictor(model)(inputs), layer(local, "fc3", r), rtol=0, atol=1e-5
    )
    torch.testing.assert_close(fedmrl.predictor(model).encode(inputs), r, rtol=0, atol=1e-5)


def test_models_of_different_widths_take_part_if_none_is_narrower_than_what_is_nested() -> None:
    both = {"models": "cnn5,tests.methods.narrow:Narrow"}
    with pytest.raises(
        UserError, match="representation-dim is 100; allowed: at most 16, the width of tests"
    ):
        method(**both).state_init(0)
    nested = method(**both, **{"fedmrl.representation-dim": 8})
    # of the narrow one, the smallest, with a neck from 16 to 8
    assert nested.state_init(0)["last.weight"].shape == (10, 8)
    assert [nested.private_init(k, 0).local.width for k in range(2)] == [500, 16]
    with pytest.raises(
        UserError, match=r"representation-dim is 501; allowed: at most 500, the width of cnn4's"
    ):
        method(**{"fedmrl.representation-dim": 501}).state_init(0)


@pytest.mark.parametrize(
    "labels", [[4] * 8, [0, 1, 2, 3, 4, 5, 6, 7, 8]], ids=["one class", "a last batch of one"]
)
def test_small_data(labels: list[int]) -> None:
    fedmrl, data = method(), samples(labels)
    upload = fedmrl.local_update(
        fedmrl.private_init(0, 1).train(), fedmrl.state_init(2), data, visit(fedmrl.experiment)
    )
    assert all(bool(t.isfinite().all()) for t in upload.tensors.values())


def test_refuses_another_small_model() -> None:
    fedmrl = method()
    state = fedmrl.state_init(0)
    fedmrl.check(Upload(state, 3), state, 0)
    with pytest.raises(
        Refused, match=r"fc2.weight is float32 \[50, 500\], expected float32 \[100, 500\]"
    ):
        fedmrl.check(Upload(method(**{"fedmrl.representation-dim": 50}).state_init(0), 3), state, 0)
