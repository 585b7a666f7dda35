"""Methods of sums: the closed forms against scikit-learn on all samples together, however these lie
with clients; what is sent again after a loss; and what the server refuses."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.visit import evaluate, logits, other_accuracies
from pfedlora_flwr.federation.visit import visit as visits
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.leave_one_out import (
    STRENGTHS,
    TEMPERATURES,
    WEIGHTS,
    correction,
    own_priors,
    spread_of,
)
from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from pfedlora_flwr.methods.moments import Sums
from pfedlora_flwr.methods.sums import OfSums, Shrunk
from pfedlora_flwr.models.summary import Summary
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.kinds import named
from pfedlora_flwr.training.loop import Samples
from tests.conftest import keys_in, run_locally
from tests.methods.obvious import Array, array
from tests.models.bases import CLASSES as CLASSES_OF_BASE
from tests.models.bases import base
from tests.plain import Plain

METHODS = ("fedncm", "fedlda", "fedridge")
CLASSES, FEATURES = 6, 7
TASK = Task(CLASSES, (FEATURES,), named("vectors"))


def made(name: str, **more: object) -> OfSums:
    keys = {"method": name, "models": "mlp5", "clients": 4} | more
    found = registry.make(from_flat(keys), TASK)
    assert isinstance(found, OfSums)
    return found


def drawn(n: int, seed: int, classes: int = CLASSES) -> Samples:
    """Vectors about a mean of their class; the last class has none."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes - 1, (n,), generator=draws)
    centre = torch.randn(classes, FEATURES, generator=torch.Generator().manual_seed(9))
    return Samples(centre[labels] + torch.randn(n, FEATURES, generator=draws), labels)


def some(samples: Samples, index: Tensor) -> Samples:
    return replace(samples, inputs=samples.inputs[index], labels=samples.labels[index])


def coordinates(method: OfSums, samples: Samples) -> Array:
    """z by NumPy: R without its mean, of unit variance, over √d."""
    model = method.initial_model(0)
    assert isinstance(model, Summary)
    with torch.no_grad():
        r = array(model.model.model.encode(samples.inputs))  # before it is normalised
    centred = r - r.mean(1, keepdims=True)
    z = centred / np.sqrt(r.var(1, keepdims=True) + 1e-5) / np.sqrt(r.shape[1])
    with torch.no_grad():
        found = array(model.model.encode(samples.inputs).double()) / np.sqrt(r.shape[1])
    np.testing.assert_allclose(found, z, atol=1e-6)
    return found


def by_scikit_learn(name: str, z: Array, y: Array, s: float) -> tuple[Array, Array]:
    """A and b of the classes that occur."""
    classes = np.unique(y)
    if name == "fedlda":
        lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=s, priors=None).fit(z, y)
        return lda.coef_, lda.intercept_ - np.log(lda.priors_)
    if name == "fedridge":
        targets = np.eye(CLASSES)[y] - 1 / CLASSES
        ridge = Ridge(alpha=s / (1 - s) * len(z), fit_intercept=False).fit(z, targets)
        return ridge.coef_[classes], np.zeros(len(classes))
    means = np.stack([z[y == c].mean(0) for c in classes])
    return means, -(means**2).sum(1) / 2


def assert_exact(method: OfSums, total: Sums, samples: Samples, s: float) -> None:
    z, y = coordinates(method, samples), samples.labels.numpy()
    a, b = by_scikit_learn(method.experiment.method, z, y, s)
    found = method.scores(total, method.strength(total, torch.zeros(0)))
    classes = np.unique(y)
    assert total.known.nonzero().squeeze(1).tolist() == classes.tolist()
    for mine, theirs in zip(found, (a, b), strict=True):
        np.testing.assert_allclose(mine.numpy()[classes], theirs, rtol=1e-8, atol=1e-8)


class Federation:
    """Clients whose samples come and go, and a server; both can be put back to an older copy."""

    def __init__(self, method: OfSums, clients: int) -> None:
        self.method = method
        self.state = method.state_init(0)
        self.round = 0
        self.kept: dict[tuple[int, int], nn.Module] = {}  # by client and round, as on a disk
        self.inside: dict[int, Samples] = {}  # whose samples are in the sums
        self.versions: dict[int, int] = {}  # of whose last counted visit the server knows
        self.clients = clients

    def visit(self, client: int, samples: Samples) -> Upload:
        """As a client does it: it begins with its model of the round that the server names."""
        received = self.method.download(self.state, client, self.round)
        version = self.versions.get(client, 0)
        assert version == int(received.get("acknowledged", version))
        start = self.kept.get((client, version)) or self.method.initial_model(client)
        model = copy.deepcopy(start)
        where = client, self.round, None, drawn(60, 100 + client)  # its validation samples
        upload, _ = visits(self.method, model, received, samples, *where)
        self.kept[client, self.round] = model
        self.method.check(upload, self.state, client)
        assert all(t.dtype in (torch.float64, torch.int64) for t in upload.tensors.values())
        return upload

    def play(self, parts: dict[int, Samples], lost: tuple[int, ...] = ()) -> dict[int, Upload]:
        """A round; the replies of `lost` never come."""
        self.round += 1
        uploads = {k: self.visit(k, samples) for k, samples in parts.items()}
        came = {k: upload for k, upload in uploads.items() if k not in lost}
        if came:
            self.state = self.method.aggregate(came, self.state, self.round)
            self.versions |= dict.fromkeys(came, self.round)
        self.inside |= {k: parts[k] for k in came}
        return uploads

    def all_samples(self) -> Samples:
        return together([*self.inside.values()])


def together(parts: list[Samples]) -> Samples:
    return Samples(torch.cat([p.inputs for p in parts]), torch.cat([p.labels for p in parts]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "s"),
    [("fedncm", 0.0), ("fedlda", 0.3), ("fedlda", 0.01), ("fedlda", 1.0), ("fedridge", 0.02)],
)
def test_whatever_visits_there_are_the_head_is_that_of_all_samples(
    name: str, s: float, seed: int
) -> None:
    """Clients' samples come and go, replies are lost, clients miss rounds and return, and the
    server goes back to an older copy."""
    keys = {} if name == "fedncm" else {"sums.shrinkage": s}
    federation, draws = Federation(made(name, **keys), 4), np.random.default_rng(seed)
    pools = [drawn(40, 10 * seed + k) for k in range(4)]
    copies = []
    for _ in range(7):
        present = draws.permutation(4)[: draws.integers(1, 5)]
        parts = {
            int(k): some(pools[k], torch.tensor(draws.permutation(40)[: draws.integers(5, 40)]))
            for k in present
        }
        lost = tuple(k for k in parts if draws.random() < 0.3)
        copies.append((federation.state, dict(federation.inside), dict(federation.versions)))
        federation.play(parts, lost)
        if draws.random() < 0.3:
            federation.state, federation.inside, federation.versions = copies[-1]
    federation.play({k: pools[k] for k in (2, 0, 3, 1)})
    assert_exact(federation.method, Sums.among(federation.state), federation.all_samples(), s)
    uploads = federation.play({k: pools[k] for k in range(4)})
    assert not any(t.numel() for u in uploads.values() for t in u.tensors.values())


@pytest.mark.parametrize("name", METHODS)
def test_a_client_in_two_is_the_same_client(name: str) -> None:
    samples, halves = drawn(30, 1), torch.arange(30).split([13, 17])
    whole, parted = (Federation(made(name), 3) for _ in range(2))
    whole.play({0: samples, 1: drawn(20, 2)})
    parted.play({2: some(samples, halves[1]), 1: drawn(20, 2), 0: some(samples, halves[0])})
    both = (f.method.scores(Sums.among(f.state), 0.3) for f in (whole, parted))
    for one, two in zip(*both, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_what_was_lost_on_its_way_is_in_the_next_difference(name: str) -> None:
    federation = Federation(made(name), 1)
    samples = drawn(30, 1)
    federation.play({0: some(samples, torch.arange(10))})
    more = some(samples, torch.arange(20))
    lost = federation.play({0: more}, lost=(0,))[0]
    assert lost.tensors["counts"].sum() == 10
    again = federation.play({0: samples})[0]
    assert again.tensors["counts"].sum() == 20, "all since the visit that the server has added"
    s = {"fedridge": 0.001}.get(name, 0.5)
    assert_exact(federation.method, Sums.among(federation.state), samples, s)


def test_as_long_as_the_server_has_added_nothing_all_is_sent() -> None:
    """As by a client that is adapted, whose visits all begin with one state."""
    method = made("fedlda")
    model, received = method.initial_model(0), method.download(method.state_init(0), 0, 1)
    sent = [visits(method, model, received, drawn(9, 1), 0, round)[0] for round in (1, 2)]
    assert all(t.equal(sent[1].tensors[n]) for n, t in sent[0].tensors.items())
    assert sent[1].tensors["counts"].sum() == 9


def test_a_client_without_its_last_model_adds_nothing_twice() -> None:
    federation = Federation(made("fedlda"), 1)
    federation.play({0: drawn(20, 1)})
    federation.kept.clear()
    line = "client 0 no longer has what it sent in round 1, .* restore its model of round 1"
    with pytest.raises(UserError, match=line):
        federation.play({0: drawn(20, 1)})


@pytest.mark.parametrize("name", METHODS)
def test_a_client_answers_among_its_classes_and_beside_it_among_all(name: str) -> None:
    federation = Federation(made(name), 2)
    few = drawn(200, 3)
    few = some(few, (few.labels < 3).nonzero().squeeze(1))
    parts = {0: few, 1: drawn(200, 4)}
    federation.play(parts)
    federation.play(parts)
    model = federation.kept[0, 2].eval()
    method, test = federation.method, drawn(100, 5)
    a, b = by_scikit_learn(
        name,
        coordinates(method, federation.all_samples()),
        federation.all_samples().labels.numpy(),
        {"fedridge": 0.001}.get(name, 0.5),
    )
    scores = coordinates(method, test) @ a.T + b  # classes 0 to 4: nobody has the last one
    said = logits(method, model, test.inputs).detach()
    np.testing.assert_allclose(array(said)[:, :3], scores[:, :3], rtol=1e-3, atol=1e-3)
    assert (said[:, :3].min(1).values > said[:, 3:].max(1).values + 40).all()
    assert said.isfinite().all(), "a program can hold them"
    of_all = method.other_predictors(model, {})["all"](test.inputs)
    np.testing.assert_array_equal(array(of_all.detach()).argmax(1), scores.argmax(1))
    assert other_accuracies(method, model, {}, test)["all"] > 0.5


def test_validation_samples_choose_the_shrinkage_by_sums_of_their_own() -> None:
    method = made("fedlda", **{"sums.shrinkage": "validation"})
    assert isinstance(method, Shrunk)
    assert method.experiment.rounds == 3
    federation = Federation(method, 2)
    parts = {0: drawn(14, 1), 1: drawn(9, 2)}
    for round in (1, 2, 3):
        federation.play(parts)
        assert federation.state["right"].any() == (round > 1)
    right = np.zeros(5)
    samples, total = federation.all_samples(), Sums.among(federation.state)
    z, y = coordinates(method, samples), samples.labels.numpy()
    for k, part in parts.items():
        held, validation = np.unique(part.labels), drawn(60, 100 + k)
        for i, s in enumerate(method.choices):
            a, b = by_scikit_learn("fedlda", z, y, s)
            scores = np.full((60, CLASSES), -np.inf)
            scores[:, np.unique(y)] = coordinates(method, validation) @ a.T + b
            said = held[scores[:, held].argmax(1)]
            right[i] += (said == validation.labels.numpy()).sum()
    assert federation.state["right"].tolist() == right.tolist()
    assert len({*right}) > 1
    assert method.strength(total, federation.state["right"]) == method.choices[right.argmax()]
    lie = federation.visit(0, parts[0])
    with pytest.raises(Refused, match="its right validation samples change by"):
        method.check(changed(lie, right=lie.tensors["right"] - 200), federation.state, 0)


def test_samples_none_of_which_differs_within_its_class_are_told_by_the_nearest_mean() -> None:
    method = made("fedlda")
    z = torch.nn.functional.normalize(torch.randn(CLASSES, method.width).double(), dim=1)
    total = Sums.of(z, torch.arange(CLASSES), CLASSES, squares=True)
    a, b = method.scores(total, 0.5)
    expected = -0.5 * torch.cdist(z, z).square() + 0.5 * z.square().sum(1)[:, None]
    np.testing.assert_allclose(z @ a.T + b, expected, atol=1e-9)


def test_oas_is_scikit_learn_s() -> None:
    federation = Federation(made("fedlda", **{"sums.shrinkage": "oas"}), 2)
    federation.play({0: drawn(60, 1), 1: drawn(40, 2)})
    samples = federation.all_samples()
    z, y = coordinates(federation.method, samples), samples.labels.numpy()
    within = np.concatenate([z[y == c] - z[y == c].mean(0) for c in np.unique(y)])
    expected = OAS(assume_centered=True).fit(within).shrinkage_
    found = federation.method.strength(Sums.among(federation.state), torch.zeros(0))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_scores_without_a_sample_are_those_of_the_other_samples(name: str) -> None:
    """Of FedLDA with the covariance of all."""
    method, samples = made(name), drawn(20, 1)
    z, y = coordinates(method, samples), samples.labels.numpy()
    d = z.shape[1]
    total = Sums.of(torch.tensor(z), samples.labels, CLASSES, squares=True)
    found = method.left_out(total, 0.2, torch.tensor(z), samples.labels).numpy()
    within = total.scatter.numpy() / 20
    covariance = 0.8 * within + 0.2 * np.trace(within) / d * np.eye(d)
    inverse = np.linalg.inv(covariance) if name == "fedlda" else np.eye(d)
    for i in range(20):
        zi, yi = np.delete(z, i, 0), np.delete(y, i)
        if name == "fedridge":
            targets = np.eye(CLASSES)[yi] - 1 / CLASSES
            ridge = Ridge(alpha=0.25 * 20, fit_intercept=False).fit(zi, targets)
            expected = z[i] @ ridge.coef_.T
        else:
            expected = np.zeros(CLASSES)
            for c in np.unique(yi):
                mean = zi[yi == c].mean(0)
                expected[c] = z[i] @ inverse @ mean - mean @ inverse @ mean / 2
            if y[i] not in yi:
                expected[y[i]] = found[i].min()
        np.testing.assert_allclose(found[i], expected, rtol=1e-7, atol=1e-9)


def test_own_shares_weigh_by_what_they_get_right() -> None:
    labels = torch.tensor([0] * 6 + [1, 1, 2, 2])
    counts = torch.bincount(labels, minlength=4).double()
    known = torch.tensor([True, True, True, False])
    chosen = set()
    for seed in range(30):
        scores = torch.randn(10, 4, generator=torch.Generator().manual_seed(seed)).double()
        spread = spread_of(scores, known)
        right = dict.fromkeys(WEIGHTS, 0)
        for w in WEIGHTS:
            for i in range(10):
                without = [float(counts[c]) - int(labels[i] == c) + 0.1 for c in range(3)]
                said = scores[i, :3].numpy() + w * float(spread) * np.log(np.array(without) / 9.4)
                right[w] += int(np.argmax(said) == labels[i])
        best = max(WEIGHTS, key=lambda w: right[w])
        chosen.add(best)
        found = own_priors(scores, labels, counts, known, spread)
        torch.testing.assert_close(found, best * spread * torch.log((counts + 0.1) / 10.4))
    assert len(chosen) > 3


def test_the_correction_is_the_best_ridge_by_leave_one_out() -> None:
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(12, 5, generator=draws).double()
    labels = torch.tensor([0, 1, 2] * 4)
    asked = torch.tensor([True, True, True, False])
    scores = torch.randn(12, 4, generator=draws).double()
    x[torch.arange(12), labels] += 2
    spread = spread_of(scores, asked)

    def fitted(rest: Array, chosen: Array, strength: float | None) -> Array:
        if strength is None:
            return np.zeros((5, 4))
        own = x.numpy()[chosen]
        return np.linalg.solve(own.T @ own + strength * 12 * np.eye(5), own.T @ rest[chosen])

    errors, weights = dict[tuple[float, float | None], float](), {}
    for t in TEMPERATURES:
        shares = np.exp(t / float(spread) * scores.numpy()) * asked.numpy()
        rest = np.eye(4)[labels] - shares / shares.sum(1, keepdims=True)
        for strength in (None, *STRENGTHS):
            left = [fitted(rest, np.arange(12) != i, strength) for i in range(12)]
            residuals = [rest[i] - x[i].numpy() @ left[i] for i in range(12)]
            errors[t, strength] = float(np.square(residuals).sum())
            weights[t, strength] = fitted(rest, np.arange(12) >= 0, strength)
    best = min(errors, key=lambda pair: errors[pair])
    assert best[1] is not None, "choose another seed"
    scale, weight = correction(x, scores, labels, asked, spread)
    assert float(scale) == pytest.approx(best[0] / float(spread))
    np.testing.assert_allclose(weight.T.numpy(), weights[best], atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("priors", ["own", "all"])
def test_priors_and_correction_stay_at_home_and_make_the_predictor(name: str, priors: str) -> None:
    options = {"sums.priors": priors, "sums.correction": "ridge"}
    plain, other = Federation(made(name), 2), Federation(made(name, **options), 2)
    parts = {0: drawn(24, 3), 1: drawn(30, 4, classes=4)}
    for federation in (plain, other):
        federation.play(parts)
        federation.play(parts)
    assert all(plain.state[n].equal(t) for n, t in other.state.items())
    model, test = other.kept[1, 2].eval(), drawn(50, 5)
    assert isinstance(model, Summary)
    x = torch.tensor(coordinates(other.method, test))
    with torch.no_grad():
        shared = model.model(test.inputs).double()
        alike = plain.kept[1, 2].eval()
        assert isinstance(alike, Summary)
        assert shared.equal(alike.model(test.inputs).double()), "of which nothing is changed"
        scores, asked = shared + model.shift, model.asked
        shares = torch.softmax((model.scale * scores).masked_fill(~asked, -torch.inf), 1)
        expected = shares + x @ model.private.double().T * x.shape[1] ** 0.5
        said = logits(other.method, model, test.inputs)
    torch.testing.assert_close(said[:, asked].double(), expected[:, asked], rtol=1e-3, atol=1e-3)
    assert said[:, ~asked].max() < said[:, asked].min()
    assert asked.sum() == (5 if priors == "own" else 3)


@pytest.mark.slow
def test_a_basis_is_the_classifiers_and_makes_no_vector_longer(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    models = ",".join(base(tmp_path, name) for name in ("test_resnet", "test_efficientnet"))
    keys: dict[str, object] = {"method": "fedlda", "models": models, "clients": 2}
    keys |= keys_in("representation=pretrained-logits partition.kind=iid dataset=synthetic:80")
    plain = Plain(keys | {"sums.dim": 6, "sums.shrinkage": 0.1})
    plain.train(2)
    method = plain.method
    assert isinstance(method, OfSums)
    directions = method.directions
    assert directions is not None
    assert directions.shape == (CLASSES_OF_BASE, 6)
    assert float(torch.linalg.matrix_norm(directions, 2)) <= 1 + 1e-12
    model, test = plain.model(0).eval(), plain.data(0).test.batch(slice(None))
    assert isinstance(model, Summary)
    with torch.no_grad():
        z = model.model.encode(test).double() / CLASSES_OF_BASE**0.5 @ directions
        a, b = method.scores(Sums.among(plain.state), 0.1)
        found = model.model(test).double()
    torch.testing.assert_close(found, z @ a.T + b, rtol=1e-3, atol=1e-3)
    with pytest.raises(UserError, match=r"sums\.dim is 20; allowed here: at most 19"):
        Plain(keys | {"sums.dim": 20})


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["none", "start"])
def test_without_sharing_it_is_the_closed_form_of_the_own_samples(
    sharing: str, tmp_path: Path
) -> None:
    keys = {"method": "fedlda", "models": "cnn5", "clients": 3, "participation": 0.67, "rounds": 3}
    keys |= {"dataset": "synthetic:100", "sharing": sharing, "partition.kind": "iid"}
    alone = [Plain(keys) for _ in range(3)]
    for client, plain in enumerate(alone):
        plain.train(3, alone=client)
    done = run_locally(tmp_path / "run", keys)
    assert done.code == 0, done.stderr
    for k, plain in enumerate(alone):
        expected = evaluate(plain.method, plain.model(k), plain.data(k)).accuracy("test")
        assert done.result["per_client"][str(k)]["accuracy"] == pytest.approx(expected)


def sent(name: str = "fedlda") -> tuple[OfSums, Tensors, Upload]:
    federation = Federation(made(name), 2)
    federation.play({0: drawn(12, 1)})
    federation.round += 1
    return federation.method, federation.state, federation.visit(1, drawn(15, 2))


def changed(upload: Upload, **tensors: Any) -> Upload:
    return replace(upload, tensors=upload.tensors | tensors)


LIES: dict[str, tuple[Any, str]] = {
    "half a sample": (
        lambda u: changed(u, counts=u.tensors["counts"] + torch.tensor([0.5, -0.5, 0, 0, 0])),
        "counts of its classes",
    ),
    "fewer than none": (
        lambda u: changed(u, counts=torch.cat([-u.tensors["counts"][:1], u.tensors["counts"][1:]])),
        "whole numbers ≥ 0",
    ),
    "more than it has": (lambda u: replace(u, samples=u.samples + 1), "its 16 samples"),
    "a long sum": (lambda u: changed(u, sums=u.tensors["sums"] * 30), "by a length of"),
    "a large moment": (lambda u: changed(u, gram=u.tensors["gram"] * 2), "the trace of its second"),
    "no moment": (lambda u: changed(u, gram=u.tensors["gram"] * 0.1), "a negative eigenvalue"),
    "no moment at all": (lambda u: changed(u, gram=u.tensors["gram"][:0]), "negative eigenvalue"),
    "a class twice": (
        lambda u: changed(u, classes=u.tensors["classes"] * 0),
        "each once, in ascending order",
    ),
    "single precision": (lambda u: changed(u, sums=u.tensors["sums"].float()), "is float32"),
    "half a moment": (lambda u: changed(u, gram=u.tensors["gram"][:9]), "gram is float64 [9]"),
    "the other names": (
        lambda u: Upload({"rows": u.tensors["sums"]}, u.samples),
        "its tensors are|tensors are",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_are_no_sums_over_such_samples_is_refused(lie: str) -> None:
    method, state, honest = sent()
    method.check(honest, state, 1)
    change, line = LIES[lie]
    with pytest.raises(Refused, match=line.replace("[", r"\[")):
        method.check(change(honest), state, 1)


def test_a_difference_must_leave_whole_sums() -> None:
    method, state, upload = sent()
    state = method.aggregate({1: upload}, state, 2)
    nothing = {n: t[:0] for n, t in upload.tensors.items()}
    method.check(Upload(nothing, 15), state, 1)
    with pytest.raises(Refused, match="its 14 samples"):
        method.check(Upload(nothing, 14), state, 1)
    less = {n: -t if t.is_floating_point() else t for n, t in upload.tensors.items()}
    with pytest.raises(Refused, match="whole numbers ≥ 0"):
        method.check(Upload(less, 15), method.aggregate({1: Upload(less, 0)}, state, 3), 1)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (
            {"sums.shrinkage": 1.5},
            "sums.shrinkage is 1.5; allowed with fedlda: auto, validation, oas, or a number",
        ),
        ({"sums.shrinkage": "much"}, "sums.shrinkage is much; allowed"),
        ({"method": "fedridge", "sums.shrinkage": "oas"}, "is oas; allowed with fedridge: auto, v"),
        ({"sums.shrinkage": "validation", "rounds": 2}, "rounds is 2; allowed with sums.shrinkage"),
        ({"sums.dim": 9}, "sums.dim is 9, and representation is features; allowed with it: pretr"),
        ({"sums.dim": 0}, "sums.dim is 0; allowed: auto, or an integer ≥ 1"),
        ({"method": "fedridge", "sums.shrinkage": 1}, "allowed with fedridge: below 1"),
        ({"train": "all"}, "train is all; allowed with fedlda: head"),
        ({"representation-norm": "none"}, "representation-norm is none; allowed with fedlda: lay"),
        ({"neck": "always"}, "neck is always; allowed with fedlda: auto"),
        (
            {"secagg.enabled": True, "sums.changing": 6},
            "sums.changing is 6; allowed with secagg.enabled: auto, or 7, by secagg.threshold, to",
        ),
    ],
)
def test_keys_that_it_cannot_take_are_told_in_a_line(keys: dict[str, object], line: str) -> None:
    with pytest.raises(UserError, match=line):
        from_flat({"method": "fedlda", "setting": "homogeneous"} | keys)


def test_models_whose_coordinates_cannot_be_added_are_told_in_a_line(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    wide = ",".join(base(tmp_path, name) for name in ("test_resnet", "test_efficientnet"))
    for keys, line in (
        ({"models": wide}, "adds representations, and theirs differ in width .*test_resnet"),
        ({"models": "cnn1,cnn2"}, "model 'cnn1' has an encoder that is drawn at random; all"),
        ({"models": "cnn1", "initial-models": "each"}, "is drawn at random"),
    ):
        with pytest.raises(UserError, match=line):
            Plain({"method": "fedlda"} | keys)
    plain = Plain(method="fedlda", models=wide, representation="pretrained-logits")
    [shown] = plain.method.remarks()
    assert "one sample of a class, its class sum is that sample's representation" in shown


def test_a_client_without_samples_is_told_in_a_line() -> None:
    with pytest.raises(UserError, match="client 0 has no training samples"):
        Federation(made("fedncm"), 1).play({0: some(drawn(5, 1), torch.arange(0))})


def test_a_run_of_its_own_defaults_sends_once() -> None:
    e = from_flat({"method": "fedlda", "setting": "homogeneous"})
    assert (e.rounds, str(e.train), e.representation_norm, e.evaluate_initial) == (
        2,
        "head",
        "layer",
        0,
    )
    assert from_flat(e.flat() | {"rounds": 5}).rounds == 5
    assert from_flat(e.flat()) == e
