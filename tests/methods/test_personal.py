"""The personal baselines: each visit against plain steps of its equations, and what is
averaged."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation import visit as visits
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.fedbabu import FineTuned
from pfedlora_flwr.methods.method import Method, Tensors
from pfedlora_flwr.models.kept import kept, load_kept
from pfedlora_flwr.models.model import ClientModel
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import derive
from tests.conftest import keys_in
from tests.models.bases import CLASSES, base
from tests.plain import Plain, make, samples, visit

DATA = samples([0, 1, 2, 3] * 3)
"""One batch, so that an epoch is one step of gradient descent, in any order of the samples."""
LAST = {"fc3.weight", "fc3.bias"}
FEW = keys_in("models=cnn5 clients=3 dataset=synthetic:121 partition.kind=iid batch-size=16")
"""A federation's keys whose visits are short; clients 0 and 1 have not as many samples."""


def method(name: str, **keys: object) -> Any:
    base = {"method": name, "models": "cnn5", "clients": 3, "batch-size": 12, "local-epochs": 3}
    return make(from_flat(base | {"momentum": 0.0, "lr": 0.05} | keys))


def trained(of: Method) -> tuple[nn.Module, Tensors, Tensors]:
    """Client 1's model after a first visit, what it received and what it sent."""
    model, received = of.private_init(1, 1), of.state_init(9)
    sent = of.local_update(model.train(), received, DATA, visit(of.experiment, 1))
    return model, received, sent.tensors


def step(model: nn.Module, names: set[str], lr: float, pull: float, towards: Tensors) -> None:
    """One step of w ← w − η (∇F(w) + pull (w − towards)) on the parameters `names`."""
    parameters = {n: p for n, p in model.named_parameters() if n in names}
    loss = cross_entropy(model(DATA.batch(slice(None))), DATA.labels)
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    with torch.no_grad():
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            away = parameter - towards[name] if pull else 0.0
            parameter -= lr * (gradient + pull * away)


def assert_close(ours: Tensors, theirs: Tensors) -> None:
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-6)


def everything(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_parameters()}


def moved(model: nn.Module, since: Tensors) -> set[str]:
    return {name for name, tensor in kept(model).items() if not torch.equal(tensor, since[name])}


def test_fedper_trains_all_from_the_received_extractor_and_sends_that() -> None:
    fedper = method("fedper")
    model, received, sent = trained(fedper)
    twin = fedper.private_init(1, 1)
    twin.load_extractor(received)
    for _ in range(3):
        step(twin, everything(twin), 0.05, 0.0, {})
    assert_close(kept(model), kept(twin))
    assert sent.keys() == everything(model) - LAST
    assert all(torch.equal(tensor, kept(model)[name]) for name, tensor in sent.items())


def test_lg_fedavg_trains_all_from_the_received_last_layer_and_sends_that() -> None:
    lg = method("lg_fedavg")
    model, received, sent = trained(lg)
    twin = lg.private_init(1, 1)
    twin.fc3.load_state_dict(received)
    for _ in range(3):
        step(twin, everything(twin), 0.05, 0.0, {})
    assert_close(kept(model), kept(twin))
    assert sent.keys() == {"weight", "bias"}
    assert all(torch.equal(tensor, kept(model)[f"fc3.{name}"]) for name, tensor in sent.items())


def test_fedrep_trains_the_head_before_the_extractor() -> None:
    fedrep = method("fedrep", **{"fedrep.head-epochs": 2})
    model, received, sent = trained(fedrep)
    twin = fedrep.private_init(1, 1)
    twin.load_extractor(received)
    for _ in range(2):
        step(twin, LAST, 0.05, 0.0, {})
    for _ in range(3):
        step(twin, everything(twin) - LAST, 0.05, 0.0, {})
    assert_close(kept(model), kept(twin))
    assert sent.keys() == everything(model) - LAST


def test_fedprox_is_held_near_what_it_received() -> None:
    fedprox = method("fedprox", **{"fedprox.mu": 0.7})
    model, received, sent = trained(fedprox)
    twin = fedprox.private_init(1, 1)
    load_kept(twin, received)
    for _ in range(3):
        step(twin, everything(twin), 0.05, 0.7, received)
    assert_close(kept(model), kept(twin))
    assert_close(sent, kept(model))


def test_fedprox_without_its_term_is_fedavg() -> None:
    ours, theirs = method("fedprox", **{"fedprox.mu": 0}), method("fedavg")
    assert_close(trained(ours)[2], trained(theirs)[2])


def test_ditto_trains_its_own_model_and_the_global_one_apart() -> None:
    ditto = method("ditto", **{"ditto.lambda": 0.4, "ditto.epochs": 2})
    model, received, sent = trained(ditto)
    own, whole = ditto.private_init(1, 1), ditto.received_model(received)
    for _ in range(2):
        step(own, everything(own), 0.05, 0.4, received)
    for _ in range(3):
        step(whole, everything(whole), 0.05, 0.0, {})
    assert_close(kept(model), kept(own))
    assert_close(sent, kept(whole))
    assert_close(sent, trained(method("fedavg"))[2])
    assert_close(kept(ditto.other_predictors(model, received)["global"]), received)


def test_ditto_begins_at_the_first_global_model_everywhere() -> None:
    plain = Plain(method="ditto", models="cnn5", clients=3)
    assert all(not moved(plain.model(k), plain.state) for k in range(3))


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbabu"])
def test_an_extractor_of_which_nothing_is_trained_is_refused(name: str) -> None:
    keys = {"method": name, "models": "tests.models.modules:Logistic", "clients": 2}
    with pytest.raises(UserError, match=r"nothing of it is trained .* set neck=always"):
        registry.make(from_flat(keys), Task(3, (9,))).state_init(0)


def balanced_step(theta: list[torch.Tensor], encode: Any, phi: list[torch.Tensor]) -> None:
    """One step of FedRoD's two losses, each written sample by sample, on its own parameters: θ and
    ψ (`theta`, which ends with ψ's weight and bias) by the balanced softmax, φ by the empirical
    risk of ψ(z) + φ(z) with z and ψ(z) fixed."""
    counts = {c: int((DATA.labels == c).sum()) for c in range(10)}
    z, labels = encode(DATA.batch(slice(None))), DATA.labels.tolist()
    logits = z @ theta[-2].T + theta[-1]
    terms = []
    for row, y in zip(logits, labels, strict=True):
        held = torch.stack([n * row[c].exp() for c, n in counts.items() if n])
        terms.append(-torch.log(counts[y] * row[y].exp() / held.sum()))
    of_theta = torch.autograd.grad(torch.stack(terms).mean(), theta)
    both = logits.detach() + z.detach() @ phi[0].T + phi[1]
    of_phi = torch.autograd.grad(cross_entropy(both, DATA.labels), phi)
    with torch.no_grad():
        for parameter, gradient in zip([*theta, *phi], [*of_theta, *of_phi], strict=True):
            parameter -= 0.05 * gradient


@pytest.mark.parametrize("models", ["cnn5", "cnn5,cnn4"])
def test_fedrod_trains_each_head_by_its_own_risk(models: str) -> None:
    fedrod = method("fedrod", models=models)
    model, received, sent = trained(fedrod)
    twin = fedrod.private_init(1, 1)
    fedrod.load_shared(twin.model, received)
    phi = list(twin.personal.parameters())
    for _ in range(3):
        balanced_step(list(twin.model.parameters()), twin.model.encode, phi)
    assert_close(kept(model), kept(twin))
    if models == "cnn5":
        assert_close(sent, kept(twin.model))
    else:
        assert_close(sent, {n: kept(twin.model)[f"fc3.{n}"] for n in ("weight", "bias")})
    images = DATA.batch(slice(None))
    z = twin.model.encode(images)
    torch.testing.assert_close(
        fedrod.predictor(model)(images), twin.model.head(z) + twin.personal(z)
    )
    generic = fedrod.other_predictors(model, received)["generic"](images)
    fedrod.load_shared(model.model, received)
    torch.testing.assert_close(generic, model.model(images))


def test_fedrod_begins_as_the_clients_own_model() -> None:
    """φ is zero, and draws nothing that a model's start depends on."""
    fedrod, alone = method("fedrod"), method("standalone")
    for k in range(3):
        assert_close(kept(fedrod.initial_model(k).model), kept(alone.initial_model(k)))
        assert not any(p.any() for p in fedrod.initial_model(k).personal.parameters())


def test_fedrods_generic_head_learns_nothing_of_a_class_that_the_client_lacks() -> None:
    """And its personalised head learns to rule that class out."""
    fedrod = method("fedrod")
    model, received, sent = trained(fedrod)
    moved = (sent["fc3.weight"] != received["fc3.weight"]).any(1)
    assert moved.tolist() == [True] * 4 + [False] * 6
    assert (model.personal.bias[4:] < 0).all()


@pytest.mark.slow
def test_fedrod_with_frozen_backbones_of_one_width_shares_the_head_alone(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    names = ("test_efficientnet", "test_resnet")
    keys = {"models": ",".join(base(tmp_path, name) for name in names), "train": "head"}
    keys |= {"representation": "pretrained-logits", "dataset": "synthetic:60"}
    plain = Plain(keys, method="fedrod", clients=2, partition__kind="iid", batch_size=16)
    plain.train(2)
    layer = {"weight": (10, CLASSES), "bias": (10,)}
    assert {name: tuple(t.shape) for name, t in plain.state.items()} == layer
    for k, model in plain.models.items():
        assert all(torch.equal(plain.uploads[k].tensors[n], t) for n, t in head_of(model).items())
        assert model.personal.weight.any()


def head_of(model: Any) -> Tensors:
    return dict(model.model.last_layer().state_dict())


@pytest.mark.slow
def test_fedbabu_trains_the_body_before_the_first_head_and_fine_tunes_both() -> None:
    fedbabu = method("fedbabu", **{"fedbabu.finetune-epochs": 2})
    model, received, sent = trained(fedbabu)
    body, tuned = (fedbabu.client_model(0) for _ in range(2))
    for twin in (body, tuned):
        load_kept(twin, first_model(fedbabu))
        twin.load_extractor(received)
    for _ in range(3):
        step(body, everything(body) - LAST, 0.05, 0.0, {})
    for _ in range(2):
        step(tuned, everything(tuned), 0.05, 0.0, {})
    assert_close(sent, body.extractor_tensors())
    assert_close(kept(fedbabu.predictor(model)), kept(tuned))
    again = fedbabu.local_update(model.train(), received, DATA, visit(fedbabu.experiment, 1))
    assert_close(again.tensors, sent)  # nothing of the fine-tuning comes back


def first_model(of: Method) -> Tensors:
    """w^0: the model that FedAvg's clients begin with."""
    return make(replace(of.experiment, method="fedavg")).state_init(
        derive(of.experiment.seed, "state")
    )


@pytest.mark.slow
def test_fedbabus_head_is_the_same_everywhere_and_in_every_round() -> None:
    plain = Plain(FEW, method="fedbabu")
    plain.play([0, 1])
    head = {n.removeprefix("fc3."): t for n, t in first_model(plain.method).items() if n in LAST}
    for model in plain.models.values():
        assert isinstance(model, FineTuned)
        assert_close(dict(model.first_head.state_dict()), head)
        assert not torch.equal(model.model.last_layer().weight, head["weight"])


class Normed(nn.Module):
    """Whose batch normalisation does not say so by its name."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(3 * 32 * 32, 6)
        self.scaling = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.scaling(self.first(inputs.flatten(1))))


@pytest.mark.slow
def test_fedbn_keeps_batch_normalisation_by_its_class_and_averages_the_rest() -> None:
    keys = {"models": "tests.methods.test_personal:Normed", "partition.kind": "iid"}
    plain = Plain(keys, method="fedbn", clients=3, batch_size=32)
    plain.train(2)
    alone = {name for name in kept(plain.model(0)) if "scaling" in name}
    assert len(alone) == 5
    assert plain.state.keys() == kept(plain.model(0)).keys() - alone
    before = {n: t.clone() for n, t in kept(plain.model(0)).items()}
    plain.play([0])
    own = plain.method.private_init(0, 0)
    load_kept(own, before | plain.received[0])  # a visit begins at the received rest, own layers
    fedavg = make(from_flat(keys | {"method": "standalone", "clients": 3, "batch-size": 32}))
    assert isinstance(own, ClientModel)
    visits.visit(fedavg, own, {}, plain.data(0).train, 0, 3)
    assert_close(kept(plain.model(0)), kept(own))
    assert plain.method.remarks() == []


@pytest.mark.slow
def test_fedbn_without_batch_normalisation_is_fedavg_and_says_so() -> None:
    ours, theirs = (Plain(method=name, models="cnn5", clients=5) for name in ("fedbn", "fedavg"))
    for plain in (ours, theirs):
        plain.play([0])
    assert all(torch.equal(t, theirs.state[n]) for n, t in ours.state.items())
    assert ours.method.remarks() == [
        "fedbn keeps batch normalisation private, and model 'cnn5' trains none: it is fedavg with a"
        " private copy"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("adapt", [True, False])
def test_apfl_mixes_the_models_and_not_their_outputs(adapt: bool) -> None:
    """The gradients at v̄ are taken there, and handed on to v and α by hand."""
    apfl = method("apfl", **{"apfl.alpha": 0.7, "apfl.adapt": adapt, "lr": 0.03})
    model, received, sent = trained(apfl)
    own, whole, mixed = (apfl.received_model(first_model(apfl)) for _ in range(3))
    load_kept(whole, received)
    alpha = 0.7
    for _ in range(3):
        mix(mixed, own, whole, alpha)
        loss = cross_entropy(mixed(DATA.batch(slice(None))), DATA.labels)
        at_mixed = torch.autograd.grad(loss, list(mixed.parameters()))
        pairs = list(zip(at_mixed, own.parameters(), whole.parameters(), strict=True))
        slope = sum(float((g * (v - w)).detach().sum()) for g, v, w in pairs)
        step(whole, everything(whole), 0.03, 0.0, {})
        with torch.no_grad():
            for gradient, v, _ in pairs:
                v -= 0.03 * alpha * gradient
        alpha = min(1.0, max(0.0, alpha - 0.03 * slope)) if adapt else alpha
    mix(mixed, own, whole, alpha)
    assert (float(model.alpha) != pytest.approx(0.7, abs=1e-7)) == adapt
    assert float(model.alpha.detach()) == pytest.approx(alpha, rel=1e-4)
    assert_close(kept(model.own), kept(own))
    assert_close(kept(apfl.predictor(model)), kept(mixed))
    assert_close(sent, kept(whole))


def mix(mixed: nn.Module, own: nn.Module, whole: nn.Module, alpha: float) -> None:
    """v̄ ← α v + (1 − α) w."""
    with torch.no_grad():
        three = zip(mixed.parameters(), own.parameters(), whole.parameters(), strict=True)
        for mean, v, w in three:
            mean.copy_(alpha * v + (1 - alpha) * w)


@pytest.mark.slow
def test_apfl_with_alpha_zero_is_fedavg() -> None:
    apfl, fedavg = method("apfl", **{"apfl.alpha": 0, "apfl.adapt": False}), method("fedavg")
    assert_close(trained(apfl)[2], trained(fedavg)[2])
    assert_close(kept(trained(apfl)[0].mixed), kept(trained(fedavg)[0]))


@pytest.mark.parametrize(("layers", "upper"), [(1, {"fc3"}), (2, {"fc2", "fc3"}), (0, None)])
def test_fedala_mixes_the_highest_layers_by_weights_that_it_learns(
    layers: int, upper: set[str] | None
) -> None:
    """One step of W by the chain rule, written by hand: ∂L/∂W = ∇L(Θ̂) ⊙ (Θ − Θ_i)."""
    keys = {"fedala.layers": layers, "fedala.share": 1, "fedala.rate": 5, "fedala.most-epochs": 1}
    fedala = method("fedala", **keys)
    model = trained(fedala)[0]
    old = {name: t.clone() for name, t in kept(model.model).items()}
    received = fedala.state_init(4)
    twin = fedala.client_model(0)
    chosen = [n for n in old if upper is None or n.split(".")[0] in upper]
    weights = {name: torch.ones_like(old[name]) for name in chosen}

    def settle() -> None:
        mixed = {n: old[n] + (received[n] - old[n]) * weights[n] for n in chosen}
        load_kept(twin, received | mixed)

    settle()
    loss = cross_entropy(twin(DATA.batch(slice(None))), DATA.labels)
    parameters = {n: p for n, p in twin.named_parameters() if n in weights}
    for name, slope in zip(
        parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True
    ):
        moved = weights[name] - 5 * slope * (received[name] - old[name])
        weights[name] = moved.clamp(0, 1)
    settle()
    for _ in range(3):
        step(twin, everything(twin), 0.05, 0.0, {})
    sent = fedala.local_update(model.train(), received, DATA, visit(fedala.experiment, 1, 2))
    assert model.names == [n for n, _ in twin.named_parameters() if n in weights]
    for weight, name in zip(model.weights, model.names, strict=True):
        torch.testing.assert_close(weight.detach(), weights[name], rtol=1e-4, atol=1e-5)
    assert any(bool((weight < 1).any()) for weight in model.weights)
    assert_close(kept(model.model), kept(twin))
    assert_close(sent.tensors, kept(twin))


def test_fedala_learns_no_longer_where_a_loss_is_not_finite() -> None:
    fedala: Any = method("fedala")
    for loss in (math.nan, math.inf):
        assert fedala.learned([1.0] * 10 + [loss], 1)


def test_fedala_takes_the_global_model_whole_at_first() -> None:
    assert_close(trained(method("fedala"))[2], trained(method("fedavg"))[2])
    assert "weights" not in visit_of(method("fedala"), 1)


@pytest.mark.slow
def test_fedala_and_fedavg_are_the_same_alone() -> None:
    """W's training draws by itself."""
    ended = []
    for name in ("fedala", "fedavg"):
        plain = Plain({**FEW, "method": name, "rounds": 3})
        plain.train(3, alone=0)
        ended.append(kept(plain.method.predictor(plain.models[0])))
    assert all(ended[0][name].equal(tensor) for name, tensor in ended[1].items())


def visit_of(fedala: Any, visits: int) -> dict[str, int]:
    """What the last of a client's first visits spent."""
    model = fedala.private_init(1, 1)
    for round in range(1, visits + 1):
        last = visit(fedala.experiment, 1, round)
        fedala.local_update(model.train(), fedala.state_init(round), DATA, last)
    return last.flops


@pytest.mark.slow
def test_fedala_learns_until_its_loss_settles_in_the_second_visit_and_one_epoch_later() -> None:
    """A flat loss settles as soon as ten epochs more are known; none settles below no threshold."""
    flat = {"fedala.rate": 1e-9, "fedala.share": 0.5}
    second = visit_of(method("fedala", **flat), 2)["weights"]
    third = visit_of(method("fedala", **flat), 3)["weights"]
    most = visit_of(method("fedala", **flat, **NEVER), 2)["weights"]
    assert (second, most) == (11 * third, 14 * third)


NEVER = {"fedala.threshold": 1e-30, "fedala.most-epochs": 14}
