"""What holds for every method alike: small data, missed rounds, what a visit and an aggregation
leave as it was, what is refused, and whole rounds against the equations in each method's file."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.methods import registry
from pfedlora_flwr.methods.method import Method, Refused, Tensors, Upload
from pfedlora_flwr.methods.tensors import tensors_of
from tests.methods import slow
from tests.plain import ANY_MODEL, SUMS, Plain, make, samples, visit

NO_REPORTS: list[tuple[Tensors, str]] = [
    *slow.NO_REPORTS,
    ({"means": torch.zeros(3, 500)}, "means"),
    ({"classes": torch.tensor([3, 3])}, "ascending"),
    ({"classes": torch.tensor([-1, 3])}, "0 to 9"),
    ({"classes": torch.tensor([1, 3], dtype=torch.int32)}, "int32"),
    ({"classes": torch.tensor([[1], [3]])}, "classes"),
    ({"extra": torch.zeros(1)}, "extra"),
    ({"classes": torch.zeros(0, dtype=torch.int64), "means": torch.zeros(0, 500)}, "expected some"),
    (  # their differences overflow to what is positive
        {"classes": torch.tensor([0, 2**63 - 1, -(2**63), -1, 5]), "means": torch.zeros(5, 500)},
        "ascending",
    ),
]
WIDTHS = {"fd": 10, "fedproto": 16, "fedssa": 17, "fedgh": 16, "fedtgp": 16, "fedorgp": 16}
"""Methods that report a row a class, and its length."""
TRAINED_THERE = ("fedgh", "fedtgp", "fedre", "fedorgp")
"""Methods whose server trains, on the uploads in the order in which it is given them."""
EQUATIONS = ["fd", "fedgh", "fedmrl", "fedorgp", "fedproto", "fedre", "fedssa", "fedtgp", "fml"]
EQUATIONS += ["lg_fedavg", "pfedafm", "pfedes", "pfedlora", "pfedmoe"]
"""Files with a slow loop, `difference`, and the terms in which it can be `WRONG`."""


def of(name: str, **keys: object) -> Method:
    """The method with a model of images that is trained in no time."""
    few = {"models": "tests.methods.narrow:Narrow", "clients": 3, "batch-size": 8}
    few |= {"fedtgp.server-epochs": 2, "fedmrl.representation-dim": 8}
    return make(from_flat({"method": name, **few, **keys}))


def visited(
    method: Method, state: Tensors, labels: list[int], client: int = 0
) -> tuple[nn.Module, Upload]:
    """A client's first visit, of which the server admits what is sent."""
    model, received = method.private_init(client, 1).train(), method.download(state, client, 1)
    before = {name: t.clone() for name, t in received.items()}
    data = samples(labels, seed=client)
    upload = method.local_update(model, received, data, visit(method.experiment, client))
    assert all(torch.equal(t, before[name]) for name, t in received.items()), "it was received"
    method.check(upload, state, client)
    return model, upload


def finite(tensors: Tensors) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors.values())


@pytest.mark.parametrize("labels", [[4] * 8, [*range(9)], [3]], ids=["one class", "8 + 1", "one"])
@pytest.mark.parametrize("name", ANY_MODEL)
def test_one_class_a_last_batch_of_one_and_a_single_sample_are_finite(
    name: str, labels: list[int]
) -> None:
    method = of(name)
    state = method.state_init(2)
    model, upload = visited(method, state, labels)
    after = method.aggregate({0: upload}, state, 1)
    assert all(map(finite, (tensors_of(model), upload.tensors, after)))
    assert finite({"": method.predictor(model.eval())(samples(labels).inputs)})
    if "classes" in upload.tensors:
        assert upload.tensors["classes"].tolist() == sorted(set(labels))


@pytest.mark.parametrize("name", ANY_MODEL)
def test_an_aggregation_changes_nothing_that_it_was_given_and_knows_no_order(name: str) -> None:
    """Nor does it draw from the global generator, or leave a gradient behind."""
    method = of(name)
    state = method.state_init(1)
    uploads = {k: visited(method, state, [k, 5, 9, 9], k)[1] for k in range(3)}
    given = [state, *(upload.tensors for upload in uploads.values())]
    before = [{n: t.clone() for n, t in tensors.items()} for tensors in given]
    torch.manual_seed(1)
    drawn = torch.get_rng_state()
    first = method.aggregate(uploads, state, 3)
    assert torch.equal(torch.get_rng_state(), drawn)
    torch.rand(7)
    again = method.aggregate(uploads, state, 3)
    assert all(torch.equal(t, again[n]) and not t.requires_grad for n, t in first.items())
    if name not in TRAINED_THERE:
        otherwise = method.aggregate({k: uploads[k] for k in (2, 0, 1)}, state, 3)
        assert list(first) == list(otherwise)
        torch.testing.assert_close([*first.values()], [*otherwise.values()])
    for now, then in zip(given, before, strict=True):
        assert all(torch.equal(t, now[n]) for n, t in then.items())


@pytest.mark.parametrize("name", [name for name in ANY_MODEL if registry.find(name).averages])
def test_the_mean_is_of_samples_whoever_holds_them(name: str) -> None:
    """Equal uploads leave it, and a client split in two does not change it."""
    keys = {"adapter.rows": "samples"} if name == "pfedlora_plus" else {}
    method, draws = of(name, **keys), torch.Generator().manual_seed(1)
    state, counts = method.state_init(9), (7, 100, 13)
    sent = [{n: torch.randn(t.shape, generator=draws) for n, t in state.items()} for _ in counts]
    shares = {0: (0, 7), 1: (1, 60), 2: (2, 13), 3: (1, 40)}
    split = {k: Upload(sent[whose], n) for k, (whose, n) in shares.items()}
    whole = {k: Upload(sent[k], n) for k, n in enumerate(counts)}
    alike = method.aggregate({0: Upload(sent[0], 7), 2: Upload(sent[0], 90)}, state, 1)
    for after in (method.aggregate(uploads, state, 1) for uploads in (whole, split)):
        assert list(after) == list(state)
        for n, tensor in after.items():
            mean = sum(one[n].double() * k for one, k in zip(sent, counts, strict=True)) / 120
            torch.testing.assert_close(tensor, mean.float(), rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(alike[n], sent[0][n], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in ANY_MODEL if name not in SUMS])
def test_a_client_that_is_not_sampled_keeps_its_predictor_to_the_bit(name: str) -> None:
    few = {"dataset": "synthetic:60", "partition.kind": "iid", "clients": 2}
    plain = Plain({**of(name).experiment.flat(), **few})
    plain.play([0, 1])
    before = {n: t.clone() for n, t in tensors_of(plain.model(0)).items()}
    plain.play([1])
    assert all(torch.equal(t, before[n]) for n, t in tensors_of(plain.model(0)).items())


@pytest.mark.parametrize("name", [name for name in ANY_MODEL if name != "standalone"])
def test_an_upload_of_another_layout_is_refused(name: str) -> None:
    method = of(name)
    state = method.state_init(2)
    sent = visited(method, state, [0, 1, 2, 3] * 2)[1].tensors
    floats = {n: t for n, t in sent.items() if t.is_floating_point() and t.numel()}
    wrong: list[Tensors] = [{n: sent[n] for n in [*sent][1:]}, sent | {"extra": torch.zeros(1)}]
    wrong += [sent | {n: t.to(torch.float16)} for n, t in floats.items()]
    wrong += [sent | {n: torch.cat([t, t])} for n, t in floats.items()]
    wrong += [sent | {n: t.flatten()} for n, t in floats.items() if t.dim() > 1]
    wrong += [dict(reversed(sent.items()))] if len(sent) > 1 else []
    for tensors in wrong:
        with pytest.raises(Refused):
            method.check(Upload(tensors, 8), state, 0)


@pytest.mark.parametrize(("change", "word"), NO_REPORTS)
@pytest.mark.parametrize(("name", "width"), WIDTHS.items())
def test_what_is_no_report_of_rows_is_refused(
    name: str, width: int, change: Tensors, word: str
) -> None:
    method = of(name)
    good = {"classes": torch.tensor([1, 3]), "means": torch.zeros(2, width)}
    if name == "fedproto" and "counts" in change:
        pytest.skip("it has them: tests/methods/test_fedproto.py")
    good |= {"counts": torch.tensor([2, 3])} if name == "fedproto" else {}
    if (means := change.get("means")) is not None:
        change = change | {"means": means.new_zeros(len(means), means.shape[1] - 500 + width)}
    if name == "fedproto" and "classes" in change and means is not None:
        change |= {"counts": torch.ones(len(means), dtype=torch.int64)}
    state = method.state_init(0)
    method.check(Upload(good, 5), state, 0)
    with pytest.raises(Refused, match=word):
        method.check(Upload(good | change, 5), state, 0)
    row = 8 + 4 * width + (8 if name == "fedproto" else 0)
    assert method.largest_upload(state) == 10 * row


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        *((name, {}) for name in ("fd", "fedproto", "fedssa", "fedtgp", "fedorgp")),
        ("pfedes", {"pfedes.mu": 0.0}),
        ("fml", {"fml.alpha": 1.0, "fml.beta": 1.0}),
        ("pfedafm", {}),
    ],
)
def test_with_nothing_from_others_a_first_visit_is_standalones_to_the_bit(
    name: str, keys: dict[str, object]
) -> None:
    """fml: its peers teach nothing. pfedafm: α is one, and frozen."""
    method, data = of(name, **{"batch-size": 5}, **keys), samples([0, 3, 7] * 4)
    alone = make(method.experiment.replace(method="standalone"))
    model, twin = method.private_init(1, 1), alone.private_init(1, 1)
    if name == "pfedafm":
        model.alpha.requires_grad_(False)
    received = method.download(method.state_init(0), 1, 1)
    method.local_update(model, received, data, visit(method.experiment, 1))
    alone.local_update(twin, {}, data, visit(method.experiment, 1))
    own = tensors_of(getattr(model, "local", model))
    assert all(torch.equal(own[n], t) for n, t in tensors_of(twin).items())


def closeness(one: Tensor, other: Tensor) -> float:
    return -float((one - other).square().sum())


def cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()))


@pytest.mark.parametrize(
    ("name", "near"), [("fedproto", closeness), ("fedtgp", closeness), ("fedorgp", cosine)]
)
def test_the_nearest_prototype_is_another_predictor(
    name: str, near: Callable[[Tensor, Tensor], float]
) -> None:
    method, data = of(name, models="cnn5"), samples([0] * 20)
    model = method.private_init(0, 1)
    assert method.other_predictors(model, method.download(method.state_init(0), 0, 1)) == {}
    rows, classes = model.encode(data.inputs).detach(), [1, 4, 8]
    means = rows[[3, 7, 11]]  # near some inputs each
    best = [classes[max(range(3), key=lambda i: near(row, means[i]))] for row in rows]
    assert {*best} == {*classes}
    received = {"classes": torch.tensor(classes), "means": means}
    scores = method.other_predictors(model, received)["prototype"](data.inputs)
    assert scores.shape == (20, 10)
    assert not scores.isnan().any()
    assert scores.argmax(1).tolist() == best


@pytest.mark.parametrize(("name", "passes"), [("pfedlora", 1), ("pfedes", 2)])
def test_a_frozen_model_keeps_its_statistics(name: str, passes: int) -> None:
    """passes: through the model, in each step of the phase that trains it."""
    method, data = of(name, **{"models": "cnn5", "local-epochs": 3}), samples([0, 1, 2, 3] * 2)
    model: Any = method.private_init(0, 3)
    norm = model.conv1 = nn.Sequential(model.conv1, nn.BatchNorm2d(16))
    method.local_update(model.train(), method.state_init(5), data, visit(method.experiment))
    assert norm[1].num_batches_tracked == 3 * passes


@pytest.mark.parametrize("name", [name for name in ANY_MODEL if name not in SUMS])
def test_a_clients_own_model_starts_as_under_any_method(name: str) -> None:
    if registry.find(name).one_model:
        pytest.skip("all begin with the server's")
    method = of(name)
    alone = make(method.experiment.replace(method="standalone"))
    model: Any = method.private_init(1, 5)
    own = tensors_of(getattr(model, "local", getattr(model, "model", model)))
    assert all(torch.equal(own[n], t) for n, t in tensors_of(alone.private_init(1, 5)).items())


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUATIONS)
def test_two_rounds_are_those_of_the_equations(name: str) -> None:
    assert import_module(f"tests.methods.test_{name}").difference() < 1e-4


@pytest.mark.methods
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (name, wrong)
        for name in EQUATIONS
        for wrong in import_module(f"tests.methods.test_{name}").WRONG
    ],
)
def test_a_wrong_term_would_be_seen(name: str, wrong: str) -> None:
    assert import_module(f"tests.methods.test_{name}").difference(wrong) > 1e-3
