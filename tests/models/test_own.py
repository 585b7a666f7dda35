"""A user's own module: with encoder and head, or whole. What is trained and asked is what its
forward computes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from pfedlora_flwr.audit.views import shared_predictor
from pfedlora_flwr.config import run_config
from pfedlora_flwr.data import datasets
from pfedlora_flwr.data.source import Reading
from pfedlora_flwr.errors import UserError
from pfedlora_flwr.federation.model_cache import MODELS
from pfedlora_flwr.launch.trainable import check_trainable
from pfedlora_flwr.methods.tensors import tensors_of
from pfedlora_flwr.models.own import Parted, Whole
from pfedlora_flwr.models.registry import build, facts
from pfedlora_flwr.models.task import Task
from pfedlora_flwr.ops.export import export
from pfedlora_flwr.rng import generators
from pfedlora_flwr.runs.trained import load_trained
from tests.conftest import keys_in, run_locally
from tests.models import modules

HERE = "tests.models.modules:"
IMAGES, SERIES, VECTORS = Task(4), Task(4, (3, 20)), Task(4, (9,))


@pytest.mark.parametrize(
    ("name", "task", "width"),
    [
        ("Recurrent", SERIES, 24),
        ("Normalised", VECTORS, 12),
        ("Logistic", VECTORS, 9),
        ("Dropped", IMAGES, 16),
        ("Pooled", IMAGES, 8),
    ],
)
def test_a_whole_module_computes_what_its_forward_did(name: str, task: Task, width: int) -> None:
    found = getattr(modules, name)
    torch.manual_seed(3)
    plain = found(task.classes) if task is IMAGES else found(task.classes, task.shape)
    torch.manual_seed(3)
    model = build(HERE + name, task)
    assert isinstance(model, Whole)
    assert model.width == width
    x = torch.randn(5, *task.shape)
    for training in (True, False):
        torch.manual_seed(4)
        expected = plain.train(training)(x)
        torch.manual_seed(4)
        assert torch.equal(model.train(training)(x), expected)
    assert torch.equal(model.head(model.encode(x)), model(x))
    assert model.encode(x).shape == (5, width)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in plain.parameters())
    model.drop_last_layer()
    assert (
        sum(p.numel() for p in model.parameters())
        == sum(p.numel() for p in plain.parameters()) - width * 4 - 4
    )


def test_parts_that_are_the_forward_stay_parts_and_trying_a_module_leaves_it_as_it_was() -> None:
    class Plain(modules.Dropped):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.encoder(inputs))

    modules.Plain = Plain  # type: ignore[attr-defined]
    assert isinstance(build(HERE + "Plain", IMAGES), Parted)
    before = torch.get_rng_state()
    model = build(HERE + "Normalised", VECTORS)
    [normalisation] = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
    assert normalisation.num_batches_tracked == 0
    assert torch.equal(normalisation.running_mean, torch.zeros(20))
    assert model.training
    torch.set_rng_state(before)
    modules.Normalised(4, (9,))
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    build(HERE + "Normalised", VECTORS)
    # what is drawn after it is what was always drawn
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.slow
def test_a_module_with_a_convolution_in_three_dimensions_is_trained_shared_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODELS, "take", lambda *_: None)
    keys = keys_in("method=fml clients=2 partition.kind=iid rounds=2 dataset=synthetic:100") | {
        "models": HERE + "Volume"
    }
    done = run_locally(tmp_path / "run", keys)
    assert done.code == 0, done.stderr
    trained = load_trained(done.output, 1)
    assert export(trained, "safetensors", tmp_path / "model") < 1e-5
    modules.Volume(10).load_state_dict(load_file(tmp_path / "model"))
    assert (
        ", by the names of the module's own state_dict. Input: "
        in (tmp_path / "model.md").read_text()
    )
    assert trained.module.get_parameter("module.flat.weight").is_contiguous(
        memory_format=torch.channels_last
    )
    shared = tensors_of(trained.method.predictor(trained.module))
    predict = shared_predictor(trained.method, shared)
    x = torch.randn(3, 3, 32, 32)
    assert predict is not None
    assert torch.allclose(predict(x), trained.method.predictor(trained.module)(x), atol=1e-6)


def test_what_is_asked_often_is_known() -> None:
    assert facts(HERE + "Normalised", VECTORS).batch_norm
    assert not facts(HERE + "Recurrent", SERIES).batch_norm
    assert facts("cnn5", Task(10)).parameters == 670_058
    assert facts("cnn5", Task(10), 100).width == 100


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "Softmaxed",
            (
                "its forward gives something else than its last linear layer, 'head', on what comes"
                " before: it must end with"
            ),
        ),
        ("Auxiliary", "its forward gives something else than its last linear layer, 'head'"),
        (
            "Looking",
            r"^model 'tests\.models\.modules:Looking': its forward uses its last linear layer"
            r" 'head' other than by calling it at the end "
            r"\(AttributeError: 'Identity' object has no attribute 'weight', at"
            r" .*modules\.py:\d+\)$",
        ),
        ("Two", r"its forward gives tuple for 2 images, expected logits, \[2, 5\]"),
        ("Convolved", "no nn.Linear runs in its forward"),
    ],
)
def test_a_module_without_a_last_linear_layer_is_one_line(name: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        build(HERE + name, Task(5))


@pytest.mark.parametrize(
    ("name", "task"),
    [(HERE + "Recurrent", SERIES), (HERE + "Normalised", VECTORS), ("cnn2", IMAGES)],
)
def test_the_extractor_of_one_model_can_be_set_in_another_of_its_kind(
    name: str, task: Task
) -> None:
    """Its representation is then the other's, its last layer stays; trained are the same parts."""
    torch.manual_seed(0)
    one, other = build(name, task), build(name, task)
    with torch.no_grad():
        for tensor in (t for t in one.state_dict().values() if t.is_floating_point()):
            tensor.add_(torch.rand(tensor.shape))
    last = tensors_of(other.last_layer())
    last = {key: tensor.clone() for key, tensor in last.items()}
    other.load_extractor({key: t.clone() for key, t in one.extractor_tensors().items()})
    x = torch.randn(3, *task.shape)
    assert torch.equal(one.eval().encode(x), other.eval().encode(x))
    assert all(torch.equal(last[key], t) for key, t in other.last_layer().state_dict().items())
    assert not torch.equal(one(x), other(x))
    trained = {id(p) for p in (*other.extractor_parameters(), *other.last_layer().parameters())}
    assert trained == {id(p) for p in other.parameters()}
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_extractor({})


def test_the_extractor_leaves_out_what_is_frozen_and_the_same_everywhere() -> None:
    model = build(HERE + "HalfFrozen", IMAGES)
    names = set(model.extractor_tensors())
    assert names == set(model.state_dict()) - model.given - {"last.weight", "last.bias"}
    assert model.given
    assert all(p.requires_grad for p in model.extractor_parameters())


@pytest.mark.slow
def test_a_mask_of_booleans_is_shared_and_a_type_that_does_not_travel_is_refused(
    tmp_path: Path,
) -> None:
    x = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    np.savez(tmp_path / "x.npz", inputs=x, labels=np.arange(60) % 3)
    keys = {"dataset": f"npz:{tmp_path / 'x.npz'}", "clients": 2, "rounds": 1, "method": "fedavg"}
    keys |= {"setting": "homogeneous", "partition.kind": "iid", "participation": 1.0}
    done = run_locally(tmp_path / "run", keys | {"models": HERE + "Masked"})
    assert done.code == 0, done.stderr
    shared = load_trained(done.output, 0).module.state_dict()
    [mask] = (tensor for name, tensor in shared.items() if name.endswith("mask"))
    assert mask.tolist() == [True] * 8 + [False] * 4
    for name, told in {
        "Half": r"Half.*scale is of bfloat16; allowed: types that NumPy has",
        "Complex": r"Complex: module\.wave is complex; allowed: real numbers",
        "ComplexBuffer": r"ComplexBuffer: module\.turn is complex; allowed: real",
        "InAList": r"InAList: its parameters and persistent buffers.* are not all of it",
        "NotPersistent": r"NotPersistent: its parameters and persistent buffers",
        "ExtraState": r"_extra_state in its state_dict is dict; allowed: tensors",
    }.items():
        with pytest.raises(UserError, match=told):
            check_trainable(run_config(keys | {"models": HERE + name}))


@pytest.mark.parametrize("name", ["Counting", "CountingParts"])
def test_a_trial_leaves_no_mark_in_what_a_forward_sets_anew(name: str) -> None:
    model = build(HERE + name, VECTORS)
    [module] = (part for part in model.modules() if isinstance(part, modules.Counting))
    assert int(module.seen) == module.steps == int(module.held["last"]) == 0
    assert not module.log
    assert not hasattr(module, "late")
    assert torch.equal(module.mean, torch.zeros(12))
    assert module.training


@pytest.mark.parametrize("name", ["Noisy", "NoisyApart"])
def test_a_model_that_draws_in_evaluation_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}': two evaluations of the same inputs differ"):
        build(HERE + name, VECTORS)
    build(HERE + "DrawsInVain", VECTORS)


def test_what_the_first_forward_makes_is_drawn_as_the_rest_is() -> None:
    first = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        first.append(build(HERE + "LazyFirst", IMAGES).state_dict()["module.body.1.weight"])
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])


@pytest.mark.parametrize("place", ["module", "function"])
@pytest.mark.parametrize(
    ("change", "look"),
    [
        ("torch.set_default_dtype(torch.float64)", torch.get_default_dtype),
        ("torch.set_default_device('meta')", torch._C._len_torch_function_stack),
        ("torch.set_default_device('meta')", torch.get_default_device),
        ("torch.set_grad_enabled(False)", torch.is_grad_enabled),
        ("torch.set_num_threads(3)", torch.get_num_threads),
        ("np.seterr(all='raise')", np.geterr),
        ("os.chdir('/')", os.getcwd),
        ("torch.manual_seed(0); np.random.seed(0); random.seed(0)", generators),
    ],
    ids=lambda value: value.split("(")[0] if isinstance(value, str) else "",
)
def test_what_own_code_sets_for_the_whole_process_is_as_before(
    place: str,
    change: str,
    look: Callable[[], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = f"own_sets_{abs(hash((place, change)))}"
    lines = {"module": [change, "pass"], "function": ["pass", change]}[place]
    text = "import os, random, numpy as np, torch\n{}\ndef data():\n    {}\n    return {}\n"
    result = "np.arange(8.0)[:, None], np.arange(8) % 2, None"
    (tmp_path / f"{own}.py").write_text(text.format(*lines, result))
    monkeypatch.syspath_prepend(tmp_path)
    before = look()
    datasets.load(f"{own}:data", Reading())
    assert look() == before
