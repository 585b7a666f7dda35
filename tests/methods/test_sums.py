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
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.visit import evaluate, logits, other_accuracies
from pfedlora_flwr.federation.visit import visit as visits
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from pfedlora_flwr.methods.sums import OfSums, Sums
from pfedlora_flwr.models.summary import Summary
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.training.kinds import named
from pfedlora_flwr.training.loop import Samples
from tests.conftest import run_locally
from tests.methods.obvious import Array, array
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
    found = method.scores(total)
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
        self.clients = clients

    def visit(self, client: int, samples: Samples) -> Upload:
        """As a client does it: it begins with its model of the round that the server names."""
        received = self.method.download(self.state, client, self.round)
        version = int(received["acknowledged"])
        start = self.kept.get((client, version)) or self.method.initial_model(client)
        model = copy.deepcopy(start)
        upload, _ = visits(self.method, model, received, samples, client, self.round)
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
        self.inside |= {k: parts[k] for k in came}
        return uploads

    def all_samples(self) -> Samples:
        return together([*self.inside.values()])


def together(parts: list[Samples]) -> Samples:
    return Samples(torch.cat([p.inputs for p in parts]), torch.cat([p.labels for p in parts]))


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
        copies.append((federation.state, dict(federation.inside)))
        federation.play(parts, lost)
        if draws.random() < 0.3:
            federation.state, federation.inside = copies[-1]
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
    for one, two in zip(
        *(f.method.scores(Sums.among(f.state)) for f in (whole, parted)), strict=True
    ):
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
        lambda u: changed(u, counts=u.tensors["counts"] + 0.5),
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
        ({"sums.shrinkage": 1.5}, "sums.shrinkage is 1.5; allowed: auto, or a number from 0 to 1"),
        ({"sums.shrinkage": "much"}, "sums.shrinkage is much; allowed"),
        ({"method": "fedridge", "sums.shrinkage": 1}, "allowed with fedridge: below 1"),
        ({"train": "all"}, "train is all; allowed with fedlda: head"),
        ({"representation-norm": "none"}, "representation-norm is none; allowed with fedlda: lay"),
        ({"neck": "always"}, "neck is always; allowed with fedlda: auto"),
        ({"secagg.enabled": True}, "fedlda does not take a mean of uploads; secagg.enabled needs"),
        ({"dp.clip": 1, "dp.noise": 1}, "fedlda does not take a mean of uploads; dp needs one"),
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
    assert plain.method.remarks() == []


def test_a_client_without_samples_is_told_in_a_line() -> None:
    with pytest.raises(UserError, match="client 0 has no training samples"):
        Federation(made("fedncm"), 1).play({0: some(drawn(5, 1), torch.arange(0))})


def test_a_run_of_its_own_defaults_sends_once() -> None:
    e = from_flat({"method": "fedlda", "setting": "homogeneous"})
    assert (e.rounds, e.train, e.representation_norm, e.evaluate_initial) == (2, "head", "layer", 0)
    assert from_flat(e.flat() | {"rounds": 5}).rounds == 5
    assert from_flat(e.flat()) == e
