"""Methods that exchange LoRA: each visit against plain gradient descent on the model written out,
and what a client keeps of it."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pfedlora_flwr.audit.views import shared_part, shared_predictor
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods import lora_factors
from pfedlora_flwr.methods.lora_factors import A, B
from pfedlora_flwr.methods.method import Tensors, Upload
from pfedlora_flwr.models import lora
from pfedlora_flwr.models.kept import base_of, kept, restore
from pfedlora_flwr.models.lora_layers import adapted_layers
from pfedlora_flwr.models.named import random_weights
from pfedlora_flwr.rng import derive, seeded
from tests.conftest import needs
from tests.methods.lora_written import Written
from tests.methods.test_fedlora import DATA, method, model, uploads
from tests.plain import LORA, visit

__all__ = ["model"]
pytestmark = [needs("timm", "peft"), pytest.mark.slow]
S, LR, STEPS = 1.5, 0.05, 2
"""α/r of these tests, the rate, and the steps of a visit, whose batch is all samples."""


def descends(name: str, model: str, **keys: object) -> Any:
    plain = {"optimizer": "sgd", "momentum": 0.0, "lr": LR, "local-epochs": STEPS}
    return method(name, model, **(plain | {"batch-size": len(DATA)} | keys))


def small(sent: dict[int, Upload]) -> dict[int, Upload]:
    """Uploads with which training does not diverge."""
    return {
        k: Upload({n: 0.05 * t for n, t in one.tensors.items()}, one.samples)
        for k, one in sent.items()
    }


def written_visit(name: str, of: Any, written: Written, received: Tensors, round: int) -> None:
    """What a visit does, by the method's equations."""
    for key, tensor in received.items():
        if key in written.tensors:
            written.tensors[key] = tensor.clone()
    for place in written.places if name in ("flora", "fedex_lora") else ():
        if f"{place}.left" in received:
            written.moved[place] = received[f"{place}.left"] @ received[f"{place}.right"]
        elif f"{place}.dense" in received:
            written.moved[place] = received[f"{place}.dense"]
    if name == "flora":
        with seeded(derive(of.experiment.seed, "flora", 1, round)):
            for place in written.places:
                key = f"{place}{A}default.weight"
                written.tensors[key] = torch.empty_like(written.tensors[key])
                nn.init.kaiming_uniform_(written.tensors[key], a=math.sqrt(5))
                written.factor(place, "B").zero_()
    if name == "fedalt":
        written.set_gate(S)
        written.descend((".default.", ".lora_gate.scores."), DATA, STEPS, LR)
        return
    if name == "feddpa":
        a = 0.3
        if round > 1:
            written.set_terms(("local", a * S, False), ("default", (1 - a) * S, True))
            written.descend((".local.",), DATA, STEPS, LR)
        written.set_terms(("default", S, False))
        written.descend((".default.",), DATA, STEPS, LR)
        return
    trained = {"ffa_lora": (B,), "rolora": (B,) if round % 2 else (A,)}.get(name, (A, B))
    written.set_terms(("default", S, False))
    written.descend(trained, DATA, STEPS, LR)


@pytest.mark.parametrize("name", [name for name in LORA if name not in ("flora", "fedex_lora")])
def test_a_visits_operations_are_pytorchs(name: str, model: str) -> None:
    """The two left out also move the base before they train, by products that are no training."""
    of = method(name, model)
    state = of.aggregate(small(uploads(of)), of.state_init(3), 1)
    client, received = of.private_init(1, 1), of.download(state, 1, 2)
    here = visit(of.experiment, 1, 2)
    with FlopCounterMode(display=False) as counter:
        of.local_update(client.train(), received, DATA, here)
    assert sum(here.flops.values()) == counter.get_total_flops()


@pytest.mark.parametrize("round", [1, 2])
@pytest.mark.parametrize("name", LORA)
def test_a_visit_is_plain_descent_on_its_equations(name: str, round: int, model: str) -> None:
    of = descends(name, model, **({"feddpa.alpha": 0.3} if name == "feddpa" else {}))
    state = of.aggregate(small(uploads(of)), of.state_init(3), 1)
    client = of.private_init(1, 1)
    written = Written.of(client)
    received = of.download(state, 1, round)
    sent = of.local_update(client.train(), received, DATA, visit(of.experiment, 1, round)).tensors
    written_visit(name, of, written, received, round)
    own = kept(client)
    for key, tensor in written.tensors.items():
        if not key.endswith(".base_layer.weight"):
            torch.testing.assert_close(own[key], tensor, rtol=2e-3, atol=2e-6)
    if name == "ffa_lora":  # one A for all
        assert all(torch.equal(own[key], first) for key, first in of.first_factors.items())
    assert sent
    assert all(torch.equal(tensor, own[key]) for key, tensor in sent.items())
    inputs = DATA.batch(slice(None))
    if name == "feddpa":
        written.set_terms(("local", 0.3 * S, False), ("default", 0.7 * S, False))
    client.eval()
    with torch.no_grad():
        torch.testing.assert_close(client(inputs), written.logits(inputs), rtol=1e-3, atol=1e-4)
        if name == "fedalt":
            with pytest.raises(UserError, match="gates weigh LoRA by each input"):
                lora.without(client, merge=True)
            return
        one = lora.without(client, merge=True).eval()
        torch.testing.assert_close(one(inputs), client(inputs), rtol=1e-4, atol=1e-5)
        others = of.other_predictors(client, received)
        for which, predict in others.items():
            written.set_terms(({"global": "default"}.get(which, which), S, False))
            torch.testing.assert_close(
                predict(inputs), written.logits(inputs), rtol=1e-3, atol=1e-4
            )
        assert set(others) == ({"global", "local"} if name == "feddpa" else set())
        torch.testing.assert_close(one(inputs), client(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["flora", "fedex_lora"])
def test_only_the_clients_own_weights_move(name: str, model: str) -> None:
    """W + ΔW of one client; the base, which all share, and other clients stay."""
    of = descends(name, model)
    other, client = of.private_init(0, 1), of.private_init(1, 1)
    before = {n: t.clone() for n, t in other.state_dict().items()}
    state = of.aggregate(small(uploads(of)), of.state_init(3), 1)
    received = of.download(state, 1, 2)
    of.local_update(client.train(), received, DATA, visit(of.experiment, 1, 2))
    assert all(torch.equal(t, before[n]) for n, t in other.state_dict().items())
    for place, layer in adapted_layers(client).items():
        base, fresh = layer.get_base_layer(), adapted_layers(other)[place].get_base_layer()
        assert torch.equal(base.given_weight, fresh.weight)
        moved = of.residual(state, place)
        expected = base.given_weight.double() + (moved[0] @ moved[1]).reshape(base.weight.shape)
        torch.testing.assert_close(base.weight.double(), expected, rtol=1e-5, atol=1e-6)
        assert not torch.equal(base.weight, base.given_weight)


@pytest.mark.parametrize("name", LORA)
def test_a_stored_client_is_the_same_when_it_is_loaded(name: str, model: str) -> None:
    of = descends(name, model)
    client = of.initial_model(1)
    state = of.aggregate(small(uploads(of)), of.state_init(3), 1)
    of.local_update(client.train(), of.download(state, 1, 2), DATA, visit(of.experiment, 1, 2))
    stored = copy.deepcopy(kept(client))
    with random_weights():
        again = of.initial_model(1)
    restore("it", again, stored, base_of(client))
    inputs = DATA.batch(slice(None))
    with torch.no_grad():
        assert torch.equal(again.eval()(inputs), client.eval()(inputs))
    received = of.download(state, 1, 3)
    ups = [
        of.local_update(m.train(), received, DATA, visit(of.experiment, 1, 3)).tensors
        for m in (client, again)
    ]
    assert all(torch.equal(ups[0][n], ups[1][n]) for n in ups[0])


@pytest.mark.parametrize("name", LORA)
def test_before_any_round_it_predicts_as_the_frozen_model(name: str, model: str) -> None:
    of = descends(name, model)
    client = of.private_init(1, 1).eval()
    frozen = lora.without(client, merge=False).eval()
    inputs = DATA.batch(slice(None))
    with torch.no_grad():
        assert torch.equal(client(inputs), frozen(inputs))


@pytest.mark.parametrize("name", ["flora", "fedex_lora", "feddpa", "fedalt"])
def test_what_one_lora_does_not_describe_is_no_peft_folder(
    name: str, model: str, tmp_path: Path
) -> None:
    client = descends(name, model).private_init(1, 1)
    with pytest.raises(UserError, match="format peft is for one LoRA beside its base, and the"):
        lora.write(client, tmp_path, {})


def test_a_larger_rank_of_the_same_scale_with_zeros_is_the_same_function(model: str) -> None:
    """(α, r) → (2 α, 2 r)."""
    one, two = (
        descends("fedit", model),
        descends("fedit", model, **{"lora.rank": "8", "lora.alpha": 12}),
    )
    small_model, large = one.private_init(1, 1).eval(), two.private_init(1, 1).eval()
    sent, padded = uploads(one)[0].tensors, {}
    for key, like in two.state_init(3).items():
        padded[key] = torch.zeros_like(like)
        padded[key][tuple(slice(0, n) for n in sent[key].shape)] = sent[key]
    lora_factors.load_some(small_model, sent)
    lora_factors.load_some(
        large, padded | {n: kept(small_model)[n] for n in one.private_init(1, 1).last_names()}
    )
    inputs = DATA.batch(slice(None))
    with torch.no_grad():
        torch.testing.assert_close(large(inputs), small_model(inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LORA)
def test_an_audit_reads_a_whole_model_where_nothing_that_is_trained_is_private(
    name: str, model: str
) -> None:
    of = method(name, model, **{"lora.head": "shared"})
    kept_model = of.initial_model(1)
    received = of.download(of.state_init(3), 1, 1)
    sent = of.local_update(kept_model, received, DATA, visit(of.experiment, 1)).tensors
    read = shared_predictor(of, shared_part(of, received, sent))
    if name in ("fedit", "ffa_lora", "rolora", "flexlora"):
        assert read is not None
        assert torch.equal(read(DATA.inputs), of.predictor(kept_model).eval()(DATA.inputs))
    elif name in ("fedsa_lora", "feddpa", "fedalt"):
        assert read is None
    private = method(name, model)
    state = private.state_init(3)
    assert shared_predictor(private, private.download(state, 1, 1)) is None


def test_an_audit_reads_factors_of_each_clients_own_rank(model: str) -> None:
    of = method("flexlora", model, **{"lora.head": "shared", "lora.rank": "2,4"})
    state = of.state_init(3)
    for client in range(2):
        assert shared_predictor(of, of.download(state, client, 1)) is not None
