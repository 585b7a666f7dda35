"""The personal baselines: each visit against plain steps of its equations, and what is
averaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method, Tensors
from pfedlora_flwr.models.kept import kept, load_kept
from pfedlora_flwr.models.task import Task
from tests.models.bases import CLASSES, base
from tests.plain import Plain, make, samples, visit

DATA = samples([0, 1, 2, 3] * 3)
"""One batch, so that an epoch is one step of gradient descent, in any order of the samples."""
LAST = {"fc3.weight", "fc3.bias"}


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


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_the_last_layer_stays_the_clients_own(name: str) -> None:
    plain = Plain(method=name, models="cnn5", clients=3, partition__kind="iid", batch_size=32)
    plain.play([0, 1])
    ours, theirs = (kept(plain.model(k)) for k in (0, 1))
    assert not torch.equal(ours["fc3.weight"], theirs["fc3.weight"])
    n = [plain.uploads[k].samples for k in (0, 1)]
    sent = [plain.uploads[k].tensors["fc1.weight"].double() for k in (0, 1)]
    mean = (sent[0] * n[0] + sent[1] * n[1]) / (n[0] + n[1])
    torch.testing.assert_close(plain.state["fc1.weight"], mean.float())


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedprox", "ditto"])
def test_models_that_differ_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} needs the same model at all clients"):
        from_flat({"method": name, "models": "cnn4,cnn5", "clients": 2})


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
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


def test_fedrod_with_frozen_backbones_of_one_width_shares_the_head_alone(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    names = ("test_efficientnet", "test_resnet")
    keys = {"models": ",".join(base(tmp_path, name) for name in names), "train": "head"}
    keys |= {"representation": "pretrained-logits", "dataset": "synthetic:60", "clients": "2"}
    plain = Plain(keys, method="fedrod", partition__kind="iid", batch_size=16)
    plain.train(2)
    layer = {"weight": (10, CLASSES), "bias": (10,)}
    assert {name: tuple(t.shape) for name, t in plain.state.items()} == layer
    for k, model in plain.models.items():
        assert all(torch.equal(plain.uploads[k].tensors[n], t) for n, t in head_of(model).items())
        assert model.personal.weight.any()


def head_of(model: Any) -> Tensors:
    return dict(model.model.last_layer().state_dict())
