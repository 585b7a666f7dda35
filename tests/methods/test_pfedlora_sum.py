"""pFedLoRA+ where the adapter is added to the head: against NumPy, a class and a sample at a time;
its basis; what is sent; and the one layer that both parts become."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from pfedlora_flwr.config import from_flat
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.visit import visit
from pfedlora_flwr.methods.method import Refused, Tensors, Upload
from pfedlora_flwr.models import basis
from pfedlora_flwr.models.adapter import Adapter
from pfedlora_flwr.models.kept import base_of, kept, restore
from pfedlora_flwr.models.pretrained import classifier_of, frozen_encoder
from pfedlora_flwr.models.registry import build
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.models.summed import Summed
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import torch_generator
from tests.conftest import keys_in, named_keys, needs
from tests.methods.obvious import Array, array, softmax
from tests.models.bases import CLASSES, base
from tests.plain import Plain, make, samples

pytestmark = needs("timm")
RANK = 6
KEYS: dict[str, object] = keys_in(
    "method=pfedlora_plus train=head representation=pretrained-logits clients=5 "
    "partition.kind=pathological partition.classes-per-client=4 participation=0.6 "
    "dataset=synthetic:150 batch-size=8 local-epochs=2 lr=0.05"
) | {"adapter.hidden-dim": RANK}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two architectures, 96 and 256 wide, whose classifiers tell 20 classes apart."""
    folder = tmp_path_factory.mktemp("bases")
    return ",".join(base(folder, name) for name in ("test_resnet", "test_efficientnet"))


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two of one width."""
    folder = tmp_path_factory.mktemp("alike")
    return ",".join(base(folder, "test_resnet", seed) for seed in (0, 1))


class Layer:
    """A linear layer in float64 with SGD of momentum 0.9 on the cross-entropy: rows by class."""

    def __init__(self, weight: Array, bias: Array) -> None:
        self.weight, self.bias = weight.copy(), bias.copy()

    def train(
        self, x: Array, y: list[int], orders: list[list[list[int]]], added: Array, among: list[int]
    ) -> None:
        """added: to each sample's logits, [n, C]. among: the classes that may be answered."""
        speed_w, speed_b = np.zeros_like(self.weight), np.zeros_like(self.bias)
        for epoch in orders:
            for batch in epoch:
                gradient_w, gradient_b = np.zeros_like(self.weight), np.zeros_like(self.bias)
                for i in batch:
                    logits = self.weight @ x[i] + self.bias + added[i]
                    share = np.zeros_like(logits)
                    share[among] = softmax(logits[among])
                    share[y[i]] -= 1
                    gradient_w += np.outer(share, x[i]) / len(batch)
                    gradient_b += share / len(batch)
                speed_w, speed_b = 0.9 * speed_w + gradient_w, 0.9 * speed_b + gradient_b
                self.weight -= 0.05 * speed_w
                self.bias -= 0.05 * speed_b


def orders(generator: torch.Generator, n: int) -> list[list[list[int]]]:
    """Two epochs' batches of 8."""
    return [
        [batch.tolist() for batch in torch.randperm(n, generator=generator).split(8)]
        for _ in range(2)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [None, 3.0])
def test_rounds_are_those_of_numpy(models: str, alpha: float | None) -> None:
    plain = Plain(KEYS | {"models": models, "adapter.alpha": alpha or "auto"})
    down = public_directions(models, RANK).T * ((alpha or RANK) / RANK)
    rows, biases = np.zeros((10, RANK)), np.zeros(10)
    heads: dict[int, Layer] = {}
    added: dict[int, tuple[Array, Array]] = {}
    for round in (1, 2, 3):
        plain.train(1)
        sums_w, sums_b, counts = np.zeros((10, RANK)), np.zeros(10), np.zeros(10)
        for k in plain.uploads:
            model = plain.model(k)
            assert isinstance(model, Summed)
            train = plain.data(k).train
            with torch.no_grad():
                x = array(model.encode(train.batch(slice(None))))
            y = train.labels.tolist()
            held = sorted(set(y))
            if k not in heads:  # as it began
                head = plain.method.initial_model(k).last_layer()
                heads[k] = Layer(array(head.weight), array(head.bias))
            generator = torch_generator(plain.experiment.seed, "train", k, round)
            own_w, own_b = np.zeros((10, RANK)), np.zeros(10)
            own_w[held], own_b[held] = rows[held], biases[held]
            z = x @ down.T
            heads[k].train(x, y, orders(generator, len(y)), z @ own_w.T + own_b, [*range(10)])
            added[k] = own_w, own_b
            trained = Layer(rows, biases)
            trained.train(z, y, orders(generator, len(y)), np.zeros((len(y), 10)), held)
            for c in held:
                sums_w[c] += y.count(c) * trained.weight[c]
                sums_b[c] += y.count(c) * trained.bias[c]
                counts[c] += y.count(c)
            sent = plain.uploads[k].tensors
            assert sent["classes"].tolist() == held
            assert sent["counts"].tolist() == [y.count(c) for c in held]
            np.testing.assert_allclose(array(sent["up.weight"]), trained.weight[held], atol=2e-5)
            np.testing.assert_allclose(array(sent["up.bias"]), trained.bias[held], atol=2e-5)
            np.testing.assert_allclose(array(model.last_layer().weight), heads[k].weight, atol=2e-5)
        for c in np.flatnonzero(counts):
            rows[c], biases[c] = sums_w[c] / counts[c], sums_b[c] / counts[c]
        np.testing.assert_allclose(array(plain.state["up.weight"]), rows, atol=2e-5)
        np.testing.assert_allclose(array(plain.state["up.bias"]), biases, atol=2e-5)
    assert len(heads) > 3, "choose a seed that visits more than one round's clients"
    for k, head in heads.items():
        test = plain.data(k).test
        model = plain.model(k).eval()
        with torch.no_grad():
            x = array(model.encode(test.batch(slice(None))))
            found = array(plain.method.predictor(model)(test.batch(slice(None))))
        own_w, own_b = added[k]
        expected = x @ (head.weight + own_w @ down).T + head.bias + own_b
        np.testing.assert_allclose(found, expected, atol=5e-4)


def public_directions(models: str, count: int) -> Array:
    """By the singular values of the classifiers side by side, [outputs, count]."""
    blocks = []
    for name in models.split(","):
        weight = array(safetensors.torch.load_file(name.partition("weights=")[2])[_head(name)])
        centred = weight - weight.mean(0)
        blocks.append(centred / np.linalg.norm(centred))
    left = np.linalg.svd(np.concatenate(blocks, 1))[0][:, :count]
    signs = [np.sign(column[np.abs(column).argmax()]) for column in left.T]
    return left * np.array(signs)


def _head(name: str) -> str:
    return "fc.weight" if "resnet" in name else "classifier.weight"


def test_the_basis_reads_features_of_any_width_as_it_reads_what_their_classifiers_say(
    models: str,
) -> None:
    names = [ModelSpec(name, train="head") for name in models.split(",")]
    as_logits = [replace(name, representation="pretrained-logits") for name in names]
    images = samples([0] * 4).inputs
    for one, two in zip(names, as_logits, strict=True):
        seen = []
        for name in (one, two):
            model = build(name, Task(10)).eval()
            weight, bias = basis.of_weights(names, model, RANK)
            with torch.no_grad():
                seen.append(model.encode(images) @ weight.T + bias)
            assert weight.shape == (RANK, model.width)
        assert torch.allclose(*seen, atol=1e-3)
        weight, bias = classifier_of(one.name)
        encoder = frozen_encoder(build(one, Task(10)))
        assert encoder is not None
        assert torch.equal(encoder.classifier[0], weight)
        assert torch.equal(encoder.classifier[1], bias)
    np.testing.assert_allclose(
        array(basis.of_weights(names, build(as_logits[0], Task(10)), RANK)[0]),
        public_directions(models, RANK).T,
        atol=1e-4,
    )


def test_a_basis_of_public_inputs_is_their_principal_directions(tmp_path: Path) -> None:
    draws = torch.Generator().manual_seed(0)
    found = [torch.randn(40, 7, generator=draws) * torch.arange(1, 8) + i for i in (0, 2)]
    file = tmp_path / "basis.safetensors"
    assert basis.write(file, found, {}) == 7
    weight, bias = basis.of_file(file, 7, 3)
    assert torch.equal(bias * 2**14, (bias * 2**14).round())
    whole = array(torch.cat(found))
    left = np.linalg.svd(whole - whole.mean(0), full_matrices=False)[2][:3]
    assert np.abs(np.sum(left * array(weight), 1)) == pytest.approx([1, 1, 1], abs=1e-4)
    read = array(torch.cat(found) @ weight.T + bias)
    assert read.mean(0) == pytest.approx([0, 0, 0], abs=1e-3)
    with pytest.raises(UserError, match=r"of representations 7 wide; these are 8 wide"):
        basis.of_file(file, 8, 3)
    with pytest.raises(UserError, match=r"hidden-dim is 8; allowed with adapter\.basis=.*most 7"):
        basis.of_file(file, 7, 8)
    with pytest.raises(UserError, match="cannot be read"):
        basis.of_file(tmp_path / "none", 7, 3)
    safetensors.torch.save_file({"a": weight.contiguous()}, tmp_path / "other")
    with pytest.raises(UserError, match="which is no basis"):
        basis.of_file(tmp_path / "other", 7, 3)
    with pytest.raises(UserError, match="are 7, 6 wide; one basis needs one width"):
        basis.write(file, [found[0], found[1][:, :6]], {})


@pytest.mark.parametrize("name", ["cnn5", "tests.models.modules:HalfFrozen"])
def test_head_and_shared_part_become_one_layer_of_the_clients_own_model(name: str) -> None:
    torch.manual_seed(3)
    task = Task(10)
    model = build(name, task)
    inputs = samples([0] * 5).inputs
    shared = Adapter(model.width, RANK, 10)
    shared.scale = 0.5
    both = Summed(model, shared, given=False)
    with torch.no_grad():
        assert torch.equal(both(inputs), model(inputs)), "it begins at zero"
        nn.init.normal_(shared.up.weight)
        nn.init.normal_(shared.up.bias)
        one = both.eval().merged()
        assert type(one) is type(model)
        assert not one.training
        assert torch.allclose(one(inputs), both(inputs), atol=1e-5)
        assert not torch.allclose(model(inputs), both(inputs), atol=1e-2), (
            "the model's is as it was"
        )
    assert one.last_layer() is not model.last_layer()
    assert list(one.state_dict()) == list(model.state_dict())
    assert one.own_names() == model.own_names()


def test_a_client_keeps_its_head_and_the_rows_and_not_what_it_can_make_again(models: str) -> None:
    plain = Plain(KEYS | {"models": models})
    plain.train(1)
    for k in plain.uploads:
        model = plain.model(k)
        assert set(kept(model)) == {
            "model.last.weight",
            "model.last.bias",
            "shared.up.weight",
            "shared.up.bias",
        }
        assert base_of(model).startswith("sha256:")
        assert "sha256:" in base_of(model).partition(", ")[2], "the matrix, and the encoder"
    other = Plain(KEYS | {"models": models, "adapter.alpha": 2})
    assert base_of(other.model(0)) == base_of(plain.model(0))


def test_a_first_matrix_that_was_drawn_is_kept_since_its_last_bits_are_the_processors(
    tmp_path: Path,
) -> None:
    keys = {"method": "pfedlora_plus", "adapter.predict": "sum", "models": "cnn5", "clients": 2}
    method = make(from_flat(keys))
    model, other = method.initial_model(0), method.initial_model(0)
    assert isinstance(other, Summed)
    tensors = {name: tensor.clone() for name, tensor in kept(model).items()}
    assert "shared.down.weight" in tensors
    with torch.no_grad():
        other.shared.down.weight.mul_(1 + 1e-6)
    restore("it", other, tensors, base_of(model))
    assert torch.equal(other.shared.down.weight, tensors["shared.down.weight"])


@pytest.mark.slow
def test_what_is_common_is_summed_and_the_rest_is_as_it_was(models: str, alike: str) -> None:
    def of(**keys: object) -> Any:
        named = named_keys(keys)
        return make(from_flat({"method": "pfedlora_plus", "adapter.hidden-dim": RANK, **named}))

    for method, sums, down in (
        (of(models=models, train="head", representation="pretrained-logits"), True, "basis"),
        (of(models=alike, train="head"), True, "basis"),
        (of(models=alike, train="head", neck="always"), False, "fixed"),
        (of(models=models, train="head"), False, "fixed"),
        (of(models=alike), False, "fixed"),
        (of(models=alike, train="head,all"), False, "fixed"),
        (of(models="cnn1", train="head"), False, "fixed"),
        (of(), False, "fixed"),
    ):
        assert (method.sums, method.down) == (sums, down)
        state = method.state_init(1)
        assert list(state) == ["up.weight", "up.bias"]
        assert bool(state["up.weight"].any()) != sums
        model = method.private_init(0, 1)
        assert isinstance(model, Summed) == sums
    own = of(models=alike, train="head", **{"adapter.predict": "own", "adapter.rows": "samples"})
    assert (own.sums, own.down) == (False, "fixed")


def test_with_samples_the_shared_part_speaks_of_all_classes_and_is_a_plain_mean(
    models: str,
) -> None:
    plain = Plain(KEYS | {"models": models, "adapter.rows": "samples"})
    before = plain.state
    plain.train(1)
    assert list(plain.uploads[min(plain.uploads)].tensors) == ["up.weight", "up.bias"]
    total = sum(upload.samples for upload in plain.uploads.values())
    mean = sum(u.tensors["up.weight"].double() * u.samples for u in plain.uploads.values()) / total
    assert torch.allclose(plain.state["up.weight"].double(), mean, atol=1e-7)
    assert not torch.equal(before["up.weight"], plain.state["up.weight"])
    plain.train(1)
    shared = plain.model(min(plain.uploads)).shared
    assert bool(shared.up.weight.any(1).all())


def test_a_report_that_is_none_is_refused(models: str) -> None:
    plain = Plain(KEYS | {"models": models})
    plain.train(1)
    client, upload = next(iter(plain.uploads.items()))
    sent = upload.tensors

    def refused(match: str, **changed: torch.Tensor) -> None:
        named: Tensors = {name.replace("_", "."): tensor for name, tensor in changed.items()}
        with pytest.raises(Refused, match=match):
            plain.method.check(Upload(sent | named, upload.samples), plain.state, client)

    refused("in ascending order", classes=sent["classes"].flip(0))
    refused("expected some of 0 to 9", classes=sent["classes"] + 9)
    refused("that sum to its", counts=sent["counts"] + 1)
    refused("numbers ≥ 1", counts=sent["counts"] * 0)
    refused("up.weight is", up_weight=sent["up.weight"][:, :1])
    refused("its tensors are", more=sent["counts"])


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"representation": "features", "adapter.predict": "sum"},
            r"adapter\.predict is sum, and the clients' representations differ in width .*: models",
        ),
        (
            {"representation": "features", "adapter.predict": "sum", "neck": "always"}
            | {"adapter.down": "basis"},
            "adapter.down is basis, and something is trained before the head",
        ),
        (
            {"adapter.hidden-dim": CLASSES},
            f"allowed with adapter.down=basis: at most {CLASSES - 1}",
        ),
        ({"models": "cnn5", "representation": "features", "adapter.down": "basis"}, "has no weigh"),
        ({"adapter.basis": "/nowhere/basis"}, "'/nowhere/basis', which cannot be read"),
        (
            {"adapter.basis": "b", "adapter.down": "fixed"},
            "adapter.basis is given, and adapter.dow",
        ),
        ({"adapter.alpha": 0}, "adapter.alpha is 0.0; allowed: auto, or a number > 0"),
        ({"adapter.hidden-dim": 0}, "adapter.hidden-dim is 0; allowed: an integer ≥ 1"),
        ({"adapter.predict": "sum", "adapter.kind": "reduced"}, "adapter.kind is reduced; allowed"),
        (
            {"method": "pfedlora", "adapter.down": "basis"},
            "adapter.down is basis; allowed with pfe",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    models: str, keys: dict[str, object], told: str
) -> None:
    def begun() -> None:
        method = make(from_flat(KEYS | {"models": models} | keys))
        method.state_init(1)
        method.private_init(0, 1)

    with pytest.raises(UserError, match=told) as refusal:
        begun()
    assert "\n" not in str(refusal.value)


def test_classifiers_of_other_classes_have_no_basis(models: str, tmp_path: Path) -> None:
    file = Path(models.split(",")[0].partition("weights=")[2])
    state = safetensors.torch.load_file(file)
    state["fc.weight"], state["fc.bias"] = state["fc.weight"][:7], state["fc.bias"][:7]
    safetensors.torch.save_file(state, tmp_path / "seven.safetensors")
    found = f"{models.split(',')[0]},timm:test_resnet:weights={tmp_path / 'seven.safetensors'}"
    method = make(from_flat(KEYS | {"models": found, "representation": "features"}))
    with pytest.raises(UserError, match="classifiers tell 20, 7 classes apart; allowed there"):
        method.private_init(0, 1)


def test_operations_are_counted(models: str) -> None:
    """Of 12 samples in 2 epochs: the head forward and its weight's gradient, the shared part
    forward; then the first matrix forward, the second one forward and its weight's gradient."""
    method = make(from_flat(KEYS | {"models": models}))
    model = method.initial_model(0)
    state = method.state_init(1)
    _, counts = visit(method, model, state, samples([0, 1, 2] * 4), 0, 1)
    head, down, up = 2 * CLASSES * 10, 2 * CLASSES * RANK, 2 * RANK * 10
    assert counts.flops["model"] == 24 * (2 * head + down + up)
    assert counts.flops["adapter"] == 24 * (down + 2 * up)
