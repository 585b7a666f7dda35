"""pFedMoE against its equations: whole rounds, the gate by hand, and what travels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfedlora_flwr.methods.method import Tensors
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models.gate import Gate, SwitchNorm1d
from tests.methods.obvious import array
from tests.methods.slow import Client, Turn, extract, largest_difference, layer, part
from tests.plain import maker, samples

method = maker({"method": "pfedmoe", "batch-size": 8, "models": "cnn4,cnn5"})
KEYS = {"method": "pfedmoe", "pfedmoe.gate-hidden-dim": 12}
WRONG = ("experts", "no gradient of the gate", "no running statistics", "biased variance")


def slow(wrong: str = "") -> Turn:
    """R = a_G G(x) + a_F F_ex(x), CE(F_hd(R), y), everything trained."""

    def turn(kept: Tensors, received: Tensors, client: Client) -> Tensors:
        small, local, gate = part(kept, "small."), part(kept, "local."), part(kept, "gate.")
        for name, t in received.items():
            small[name].copy_(t)
        mean, var = gate["switch.running_mean"], gate["switch.running_var"]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = x.flatten(1)
            if len(x) > 1:
                batch_mean, batch_var = (
                    z.mean(0),
                    z.var(0, correction=0 if wrong == "biased variance" else 1),
                )
                if wrong != "no running statistics":
                    mean.copy_(0.9 * mean + 0.1 * batch_mean)
                    var.copy_(0.9 * var + 0.1 * batch_var)
            else:
                batch_mean, batch_var = mean.clone(), var.clone()
            m = gate["switch.mean_weight"].exp() / gate["switch.mean_weight"].exp().sum()
            v = gate["switch.var_weight"].exp() / gate["switch.var_weight"].exp().sum()
            middle = m[0] * z.mean(1)[:, None] + m[1] * batch_mean[None]
            spread = v[0] * z.var(1)[:, None] + v[1] * batch_var[None]
            z = (z - middle) / (spread + 1e-5).sqrt() * gate["switch.weight"] + gate["switch.bias"]
            h = layer(gate, "down", z)
            h = (h - h.mean(1)[:, None]) / (h.var(1, correction=0)[:, None] + 1e-5).sqrt() * gate[
                "norm.weight"
            ] + gate["norm.bias"]
            a = layer(gate, "up", 1 / (1 + (-h).exp())).exp()
            a = a / a.sum(1)[:, None]
            if wrong == "no gradient of the gate":
                a = a.detach()
            a_g, a_f = (a[:, 1], a[:, 0]) if wrong == "experts" else (a[:, 0], a[:, 1])
            r = a_g[:, None] * extract(small, x) + a_f[:, None] * extract(local, x)
            return cross_entropy(layer(local, "fc3", r), y)

        client.sgd([t for name, t in kept.items() if "running" not in name], loss)
        return {name: t.clone() for name, t in small.items()}

    return turn


def difference(wrong: str = "") -> float:
    return largest_difference(slow(wrong), **KEYS)


def test_the_experts_weights_sum_to_one() -> None:
    gate = Gate(48, 5)
    for inputs in (
        torch.randn(9, 3, 4, 4),
        torch.randn(1, 48),
        1e4 * torch.randn(9, 48),
        torch.zeros(9, 48),
    ):
        for mode in (True, False):
            weights = gate.train(mode)(inputs)
            assert weights.shape == (len(inputs), 2)
            torch.testing.assert_close(weights.sum(1), torch.ones(len(inputs)))


@pytest.mark.parametrize(("hidden", "expected"), [(128, 393_602), (64, 196_802), (32, 98_402)])
def test_size_of_the_gate(hidden: int, expected: int) -> None:
    gate = method(**{"pfedmoe.gate-hidden-dim": hidden}).private_init(0, 1).gate
    assert sum(p.numel() for layer in (gate.down, gate.up) for p in layer.parameters()) == expected
    assert sum(p.numel() for p in gate.switch.parameters()) == 6_148


def test_switchable_normalisation_number_by_number() -> None:
    x = np.random.default_rng(0).normal(2, 3, size=(5, 4))
    norm = SwitchNorm1d(4)
    with torch.no_grad():
        norm.mean_weight.copy_(torch.tensor([0.5, -1.0]))
        norm.var_weight.copy_(torch.tensor([2.0, 0.0]))
    m, v = ([np.exp(a), np.exp(b)] / (np.exp(a) + np.exp(b)) for a, b in ((0.5, -1.0), (2.0, 0.0)))
    running_mean, running_var = 0.1 * x.mean(0), 0.9 + 0.1 * x.var(0, ddof=1)

    def expected(rows: np.ndarray, batch_mean: np.ndarray, batch_var: np.ndarray) -> np.ndarray:
        out = np.empty_like(rows)
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                mean = m[0] * row.mean() + m[1] * batch_mean[j]
                var = v[0] * row.var(ddof=1) + v[1] * batch_var[j]
                out[i, j] = (value - mean) / np.sqrt(var + 1e-5)
        return out

    inputs = torch.from_numpy(x).float()
    np.testing.assert_allclose(
        array(norm.train()(inputs)), expected(x, x.mean(0), x.var(0, ddof=1)), atol=1e-5
    )
    np.testing.assert_allclose(array(norm.running_mean), running_mean, atol=1e-6)
    np.testing.assert_allclose(array(norm.running_var), running_var, atol=1e-5)
    np.testing.assert_allclose(
        array(norm(inputs[:1])), expected(x[:1], running_mean, running_var), atol=1e-5
    )
    np.testing.assert_allclose(
        array(norm.eval()(inputs)), expected(x, running_mean, running_var), atol=1e-5
    )
    np.testing.assert_allclose(
        array(norm.running_mean),
        running_mean,
        atol=1e-6,
        err_msg="only batches of the training move it",
    )


def test_equal_experts_leave_nothing_to_the_gate() -> None:
    moe, inputs = method(models="cnn5"), samples([0, 1, 2]).inputs
    model = moe.private_init(0, 1).eval()
    model.small.load_state_dict(
        {name: t for name, t in tensors_of(model.local).items() if not name.startswith("fc3")}
    )
    before = moe.predictor(model)(inputs)
    nn.init.normal_(model.gate.up.weight, std=10)
    torch.testing.assert_close(moe.predictor(model)(inputs), before)
    torch.testing.assert_close(before, model.local(inputs))


def test_either_expert_alone() -> None:
    moe, inputs = method(), samples([0, 1, 2]).inputs
    model = moe.private_init(0, 1).eval()
    p = tensors_of(model)
    found = moe.other_predictors(model, moe.state_init(0))
    assert list(found) == ["global-expert", "local-expert"]
    for predict, expert in zip(found.values(), ("small.", "local."), strict=True):
        expected = layer(part(p, "local."), "fc3", extract(part(p, expert), inputs))
        torch.testing.assert_close(predict(inputs), expected, rtol=0, atol=1e-5)
