"""Models whose weights came from elsewhere: what is trained of them, what they see, and what R
is."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from pfedlora_flwr.comparison.estimate import work
from pfedlora_flwr.config import from_flat, run_config
from pfedlora_flwr.data.local import Site, models_own
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.visit import visit as visit_client
from pfedlora_flwr.models.kept import base_of, kept, load_kept, restore
from pfedlora_flwr.models.model import given_names, modules_outside
from pfedlora_flwr.models.named import random_weights
from pfedlora_flwr.models.pretrained import frozen_encoder
from pfedlora_flwr.models.registry import build, facts, small_model
from pfedlora_flwr.models.spec import ModelSpec
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.rng import seeded
from pfedlora_flwr.training.flops import count_operations
from tests.conftest import Lazily, keys_in, needs
from tests.models.bases import CLASSES, base
from tests.plain import make, samples

timm = Lazily("timm")
pytestmark = needs("timm")
NAMES = ("test_resnet", "test_efficientnet")
"""timm's own, for tests: 96 and 256 wide."""
TASK = Task(10)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Model names with weights in files."""
    folder = tmp_path_factory.mktemp("bases")
    return {name: base(folder, name) for name in NAMES}


def theirs(name: str) -> nn.Module:
    """timm's own model with the weights of a base, in evaluation mode."""
    module = timm.create_model(name.split(":")[1], num_classes=CLASSES)
    file = name.partition("weights=")[2]
    module.load_state_dict(safetensors.torch.load_file(file))
    return module.eval()


def in_full(name: str, said: dict[str, str]) -> str:
    return f"{name} ({', '.join(f'{k}={v}' for k, v in said.items() if v != 'auto')})"


@pytest.mark.parametrize(
    "name",
    [
        "cnn1",
        "timm:resnet18:weights=/a b/w (1).pt (train=head, model-input=96)",
        "my:Net (train=head, representation=pretrained-logits, neck=50)",
        "timm:resnet18:weights=/w (old)",
    ],
)
def test_a_name_in_full_is_parted_into_what_it_says(name: str) -> None:
    assert str(ModelSpec.parse(name)) == name


def test_clients_train_what_is_listed_in_turn() -> None:
    e = from_flat({"models": "cnn1, timm:resnet10t", "train": "head,all, head", "model-input": 64})
    method = make(e)
    assert tuple(map(str, method.model_names)) == (
        "cnn1 (train=head)",
        "timm:resnet10t (model-input=64)",
        "cnn1 (train=head)",
        "timm:resnet10t (train=head, model-input=64)",
        "cnn1",
        "timm:resnet10t (train=head, model-input=64)",
    ), "client k has number k of each list, mod its length"


@pytest.mark.parametrize(
    "said",
    [
        {"train": "head"},
        {"train": "head", "neck": "8"},
        {"train": "head", "representation-norm": "layer"},
        {"train": "lora"},
        {"train": "all"},
    ],
    ids=lambda said: ", ".join(said.values()),
)
def test_what_is_no_base_is_found_without_going_through_it(
    bases: dict[str, str], said: dict[str, str]
) -> None:
    if said["train"] == "lora":
        pytest.importorskip("peft")
    name = in_full(bases["test_resnet"], said)
    model = nn.ModuleList([nn.Linear(2, 2), build(name, TASK)])
    given = {f"1.{name}" for name in model[1].given}
    assert given_names(model) == given
    state = {name: t for name, t in model.state_dict().items() if name not in given}
    assert list(kept(model)) == list(state)
    assert all(kept(model)[name].data_ptr() == state[name].data_ptr() for name in state)
    passed = [*modules_outside(model)] != [*model.named_modules(remove_duplicate=False)]
    assert passed == (frozen_encoder(model) is not None) == (said["train"] == "head")


@pytest.mark.parametrize("bare", ["cnn2", "test_resnet", "tests.methods.narrow:Narrow"])
@pytest.mark.parametrize("neck", ["auto", "8"])
def test_a_normalised_representation_is_the_models_own_without_mean_and_scale(
    bases: dict[str, str], bare: str, neck: str
) -> None:
    said = {"neck": neck, "train": "head" if bare in bases else "all"}
    built = []
    for norm in ("none", "layer"):
        with seeded(3):
            name = in_full(bases.get(bare, bare), said | {"representation-norm": norm})
            built.append(build(name, TASK).eval())
    plain, normed = built
    inputs = TASK.random(6, torch.Generator().manual_seed(1))
    with torch.no_grad():
        r, found, logits = plain.encode(inputs).double(), normed.encode(inputs), normed(inputs)
        assert normed.width == plain.width == r.shape[1]
        centred = r - r.mean(1, keepdim=True)
        expected = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
        assert torch.allclose(found.double(), expected, atol=1e-4)
        assert torch.equal(logits, plain.head(found)), "the head was drawn as without"
    assert [t.shape for t in kept(normed).values()] == [t.shape for t in kept(plain).values()]


def test_standalone_on_normalised_representations_has_the_variants_bits() -> None:
    models = []
    for keys in (
        {"method": "standalone", "representation-norm": "layer"},
        {"method": "benchmarks.variants:NormalisedStandalone"},
    ):
        method = make(from_flat(keys | {"models": "cnn2"}))
        model = method.private_init(0, 1)
        visit_client(method, model, {}, samples([0, 1, 2, 3] * 4), 0, 1)
        models.append([*method.predictor(model).state_dict().values()])
    assert all(map(torch.equal, *models))


@pytest.mark.parametrize("method", ["standalone", "pfedlora", "fml", "fedmrl"])
def test_a_visit_with_a_frozen_encoder_changes_the_head_and_the_neck_alone(
    method: str, bases: dict[str, str]
) -> None:
    e = from_flat(
        keys_in("train=head neck=always representation-width=120 weight-decay=0.1")
        | {"method": method, "models": bases["test_resnet"]}
    )
    made = make(e)
    model = made.private_init(0, 1)
    own = made.predictor(model)
    if method == "fedmrl":
        own = model.local  # type: ignore[assignment]
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    received = made.download(made.state_init(1), 0, 1)
    visit_client(made, model, received, samples([0, 1, 2, 3] * 2), 0, 1)
    changed = {n for n, t in own.state_dict().items() if not torch.equal(before[n], t)}
    assert changed == {"neck.weight", "neck.bias", "last.weight", "last.bias"}
    assert set(kept(own)) == changed
    assert not any(part.training for part in own.model.module.modules())


def test_the_encoder_is_read_once_and_shared_and_named_by_its_files_hash(
    bases: dict[str, str],
) -> None:
    found = bases["test_resnet"]
    method = make(from_flat({"models": found, "train": "head", "method": "standalone"}))
    one, two = method.initial_model(0), method.initial_model(1)
    assert one.module is two.module
    assert not torch.equal(one.last.weight, two.last.weight)
    digest = hashlib.sha256(Path(found.partition("=")[2]).read_bytes()).hexdigest()
    assert base_of(one) == f"timm:test_resnet sha256:{digest}"
    x, whole = torch.randn(2, 3, 32, 32), theirs(found)
    with torch.no_grad():
        expected = whole.forward_head(whole.forward_features(x), pre_logits=True)
        assert torch.allclose(one.eval().encode(x), expected, atol=1e-6)
    names = one.own_names()
    loaded = timm.create_model("test_resnet", num_classes=10)
    loaded.load_state_dict({names[n]: t for n, t in one.state_dict().items()})
    assert torch.allclose(loaded.eval()(x), one(x), atol=1e-6)


@pytest.mark.parametrize("train", ["head", "lora"])
def test_another_file_under_the_name_of_a_base_is_refused_in_a_line(
    bases: dict[str, str], tmp_path: Path, train: str
) -> None:
    if train == "lora":
        pytest.importorskip("peft")
    file = tmp_path / "w.safetensors"
    state = safetensors.torch.load_file(bases["test_resnet"].partition("=")[2])
    safetensors.torch.save_file(state, file)
    name = f"timm:test_resnet:weights={file} (train={train})"
    trained = build(name, TASK)
    tensors, trained_on = kept(trained), base_of(trained)
    assert (set(tensors) == {"last.weight", "last.bias"}) == (train == "head")
    safetensors.torch.save_file(state | {"conv1.0.weight": state["conv1.0.weight"] * 2}, file)
    with random_weights():
        again = build(name, TASK)
    with pytest.raises(UserError, match="its model was trained on the base") as error:
        restore("its model", again, tensors, trained_on)
    assert trained_on in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    file.unlink()
    with pytest.raises(UserError, match="cannot be read: No such file"), random_weights():
        build(name, TASK)
    assert facts(name, TASK, 60).width == 60, "what a server asks needs no file"


@pytest.mark.slow
def test_pretrained_logits_are_what_the_classifier_says(bases: dict[str, str]) -> None:
    said = " (train=head, representation=pretrained-logits, model-input=48)"
    x = torch.randn(2, 3, 32, 32)
    larger = nn.functional.interpolate(x, (48, 48), mode="bicubic")
    for found in bases.values():
        model = build(found + said, TASK).eval()
        with torch.no_grad():
            assert torch.allclose(model.encode(x), theirs(found)(larger), atol=1e-5)
        assert model.width == 20
        assert set(kept(model)) == {"last.weight", "last.bias"}
    method = make(
        from_flat(
            {
                "method": "lg_fedavg",
                "models": ",".join(bases.values()),
                "train": "head",
                "representation": "pretrained-logits",
            }
        )
    )
    assert method.built_width is None, "one width, whatever the encoders': no neck"
    assert method.shared_width == 20


@pytest.mark.slow
def test_a_model_resizes_inside_itself_and_that_is_counted(bases: dict[str, str]) -> None:
    found = bases["test_efficientnet"]
    x, whole = torch.randn(2, 3, 32, 32), theirs(found)
    for side in (64, 24):
        model = build(f"{found} (train=head, model-input={side})", TASK).eval()
        given = nn.functional.interpolate(x, (side, side), mode="bicubic", antialias=side < 32)
        with torch.no_grad():
            expected = whole.forward_head(whole.forward_features(given), pre_logits=True)
            assert torch.allclose(model.encode(x), expected, atol=1e-5)
            with count_operations() as ours:
                model.encode(x)
            with count_operations() as direct:
                whole.forward_features(given)
        assert ours.forward == direct.forward
    trained = build(f"{found} (model-input=64)", TASK)
    assert trained.side == 64, "one that is trained whole, too"
    assert all(p.requires_grad for p in trained.parameters())


def test_a_shared_second_model_is_trained_whole(bases: dict[str, str]) -> None:
    plain = ModelSpec("", train="head", neck=50, model_input=40)
    names = tuple(replace(plain, name=found) for found in bases.values())
    model = small_model(names, TASK)
    assert all(p.requires_grad for p in model.parameters())
    assert (model.width, model.side) == (256, 40), "test_efficientnet, which is smaller, as it is"


def test_always_a_neck_where_widths_agree_and_for_methods_that_need_none() -> None:
    keys = {"neck": "always", "representation-width": 30, "models": "cnn1,cnn2"}
    for method in ("standalone", "fedproto"):
        made = make(from_flat(keys | {"method": method}))
        model = made.private_init(1, 5)
        assert model.neck.in_features == 500
        assert model.width == 30
        if method == "standalone":
            alone = kept(model)
    assert all(torch.equal(t, alone[n]) for n, t in kept(model).items()), "the same model"
    load_kept(model, alone)


def test_inputs_are_normalised_as_a_frozen_models_weights_were_made(
    bases: dict[str, str],
) -> None:
    ours, imagenet = bases["test_resnet"], bases["test_efficientnet"]
    federation = Site.find(from_flat({}), 0, {})
    keys = {"models": f"{ours},{imagenet},cnn1", "dataset": "digits"}

    def constants(client: int, **more: str) -> tuple[float, float]:
        site = Site.find(from_flat(keys | more), client, {})
        return site.mean[0], site.std[0]

    theirs_ = federation.mean[0], federation.std[0]
    assert constants(0) == constants(1) == constants(2) == theirs_, "trained whole"
    assert constants(0, train="head") == (0.5, 0.5)
    assert constants(1, train="head") == (0.485, 0.229)
    assert constants(2, train="head") == theirs_, "it has no weights"
    assert constants(0, train="head,all,all,all") == (0.5, 0.5)
    assert constants(3, train="head,all,all,all") == theirs_
    assert constants(0, train="head", normalise="federation") == theirs_
    with pytest.raises(UserError, match="normalise is model, and model 'cnn1' has no weights"):
        constants(2, normalise="model")
    e = from_flat({"models": imagenet, "train": "head"})
    mean, std = models_own(e, Task(10, (1, 32, 32)), 0) or ((), ())
    assert mean == pytest.approx([(0.485 + 0.456 + 0.406) / 3]), (
        "of grey images, the channels' mean"
    )
    assert len(std) == 1


def test_a_file_of_an_export_tells_how_its_inputs_were_normalised(
    bases: dict[str, str], tmp_path: Path
) -> None:
    state = safetensors.torch.load_file(bases["test_resnet"].partition("weights=")[2])
    told = {"architecture": "x", "preprocessing": "{}", "mean": "[0.1, 0.2, 0.3]"}
    for more, mean in (
        ({"std": "[0.4, 0.5, 0.6]"}, (0.1, 0.2, 0.3)),
        ({"std": "somebody's"}, (0.5, 0.5, 0.5)),
        ({}, (0.5, 0.5, 0.5)),
    ):
        file = tmp_path / "w.safetensors"
        safetensors.torch.save_file(state, file, told | more)
        keys = {"models": f"timm:test_resnet:weights={file}", "train": "head"}
        assert (models_own(from_flat(keys), TASK, 0) or ((),))[0] == mean


def test_a_plan_counts_one_pass_through_a_frozen_encoder() -> None:
    """Augmented samples pass it in every epoch; a visit, of two clients here, costs something."""
    keys = {"models": "timm:test_vit", "train": "head", "clients": 2, "partition.kind": "iid"}
    keys |= {"dataset": "synthetic:100", "local-epochs": 2}
    once, longer, anew, anew_longer = (
        work(run_config(keys | {"rounds": rounds, "augment": augment}))
        for augment in (False, True)
        for rounds in (5, 50)
    )
    visits = 10 * 1.6e9
    assert longer - once == pytest.approx(9 * visits)
    assert anew - visits == pytest.approx((once - visits) * 5 * 2 * 3 * 0.8)
    assert anew_longer == pytest.approx(10 * anew)
