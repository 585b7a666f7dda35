"""FedMRL against its equations: whole rounds, what is nested in what, and what travels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.methods.tensors import tensors_of
from tests.conftest import keys_in
from tests.methods.slow import Client, Turn, extract, largest_difference, layer, part
from tests.plain import maker, samples

method = maker({"method": "fedmrl", "batch-size": 8, "models": "cnn4,cnn5"})
KEYS = keys_in(
    "method=fedmrl fedmrl.representation-dim=30 fedmrl.small-weight=0.7 fedmrl.large-weight=1.2"
)
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


def difference(wrong: str = "") -> float:
    return largest_difference(slow(wrong), **KEYS)


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
